"""What a drafting model must offer: open, truncate and feed a context, batched over sessions.

The engine knows nothing of sockets, policies, counts or random words. It turns tokens into logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftwire.wire.identity import ModelIdentity
from draftwire.wire.registry import Adaptation
from draftwire.wire.states import StateFormat


class DraftContext(Protocol):
    """The state of one sequence inside an engine (a KV cache, for instance), opaque to callers."""

    @property
    def length(self) -> int:
        """Tokens that this context holds the state of."""


Context = TypeVar("Context", bound=DraftContext)
ReadContext = TypeVar("ReadContext", bound=DraftContext, contravariant=True)


class DraftEngine(ModelIdentity, Protocol[Context]):
    """A drafting model."""

    @property
    def adaptation(self) -> Adaptation:
        """Whether the checkpoint speaks the target's vocabulary natively or through an id map."""

    def open(self) -> Context:
        """Return a new context that holds no tokens."""

    def close(self, context: Context) -> None:
        """Free what the context holds; it is not used again, whatever this raises."""

    def truncate(self, context: Context, length: int) -> None:
        """Keep the state of the first ``length`` tokens (``0 <= length <= context.length``)."""

    def forward(self, batch: Sequence[tuple[Context, Sequence[int]]]) -> Any:
        """Feed at least one token to each context and return the logits after the last one.

        batch: B different contexts, each with its new tokens (lengths may differ). Returns (B, V)
        in the order of the batch, binary32 or bfloat16: a NumPy array, or a torch tensor where the
        model computes, so that the kernels quantise and draw there. A row depends on its own tokens
        alone. Where it does so to the bit (batch-invariant), a seed repeats its text; where the
        model's rounding depends on the batch, the law is the same. Raises only when the whole batch
        failed.
        """


@runtime_checkable
class MeasuresContexts(Protocol[ReadContext]):
    """A drafting model that knows what its contexts hold, so that they may be kept (M13).

    What a context holds of a prefix must serve any text that begins with it.
    """

    def context_bytes(self, context: ReadContext) -> int:
        """Return the bytes of memory that a context holds."""


@runtime_checkable
class LimitsDepth(Protocol):
    """A drafting model that draws only so many tokens of a proposal."""

    @property
    def max_depth(self) -> int:
        """The most drafts of a proposal."""


@runtime_checkable
class ReadsStates(Protocol[ReadContext]):
    """A drafting model that is fed with hidden states of the target (P36)."""

    @property
    def state_format(self) -> StateFormat:
        """Layers and width of what it reads, raw; the type on the wire is the verifier's choice."""

    def fuse(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Project raw rows (R, n x d) to fused ones (R, d), as the model does first of all."""

    def take_states(self, context: ReadContext, first: int, rows: NDArray[np.float32]) -> None:
        """Read the states of the committed tokens at positions ``first``, ``first`` + 1, ...

        rows: finite, (R, d) fused, or (R, n x d) raw, as their width tells. They come between
        ``truncate`` and the ``forward`` of the same round, at most once, for tokens before the
        anchor, whose own state is not known yet; those of tokens that are fed then, too. None that
        is held comes again; ``first`` beyond ``states_held`` leaves a gap. ``truncate`` to a length
        forgets the states from there on. Where states of a position are missing the model drafts
        without them.
        """

    def states_held(self, context: ReadContext) -> int:
        """Return n: the states of the first n positions are held, without a gap."""


@runtime_checkable
class FusesStates(ReadsStates[ReadContext], Protocol[ReadContext]):
    """One whose projection a verifier may apply, so that a row is one state and not n of them."""

    @property
    def projection_digest(self) -> bytes:
        """SHA-256 of the projection's weights and of the norm behind it (P36), 32 bytes.

        Empty where a fused row has not as many elements as one layer's state: it never travels.
        """
