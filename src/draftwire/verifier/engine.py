"""What a target model must offer: the scores of p at each position, with the drafts in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftwire.verifier.sampling import Sampling
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.processors import Processor

Context = TypeVar("Context")
Request = TypeVar("Request", contravariant=True)


class TargetEngine(ModelIdentity, Protocol[Context]):
    """A target model together with its unchanged processors (penalties, masks, temperature, top-k).

    ``Context``: the opaque state of one request.
    """

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids that end a text."""

    def open(self, prompt: Sequence[int], sampling: Sampling) -> Context:
        """Begin a request: ``prompt`` has at least one id, all in [0, V)."""

    def score(self, context: Context, committed: Sequence[int], drafts: Sequence[int]) -> Any:
        """Return the scores of p at the K+1 positions after ``committed``, drafts in place.

        committed: the whole committed sequence, prompt included; it only ever grows, and whatever
        the engine cached beyond it (rejected drafts of the call before) is rolled back here.
        drafts: K ids. Returns (K+1, V), NumPy's or torch's, where the model computes: binary32 or
        narrower is the score of every id, -infinity what is forbidden (A24); binary64 is p itself,
        not normalised (A17). Row i is what follows ``committed + drafts[:i]``, after every
        processor, exactly what this engine would sample from; at temperature 0 what it would take
        the largest of (A21). The caller may keep the rows until the next call. They are judged
        (A11) by the verification, not here.
        """

    def close(self, context: Context) -> None:
        """Free what the request holds; it is not used again."""


@runtime_checkable
class YieldsStates(Protocol[Request]):
    """A target that keeps what its layers compute for committed tokens, for drafters that read it.

    States influence q alone (P38): any row may be missing, or wrong, under the same law.
    """

    @property
    def state_layers(self) -> int:
        """How many layers there are; 0 = their states cannot be had."""

    @property
    def state_width(self) -> int:
        """Elements of one layer's state of a token."""

    def keep_states(self, context: Request, layers: Sequence[int]) -> None:
        """Keep the states of these layers, rising, of what is computed from now on.

        Called again with the same layers wherever a drafter is connected to.
        """

    def states(
        self, context: Request, committed: Sequence[int], first: int, most: int
    ) -> tuple[int, NDArray[np.float32]]:
        """Return the rows (R, n x d) of at most ``most`` tokens, and the position of their first.

        committed: the whole committed sequence; no row is of a token that is not in it. They begin
        at ``first``, or where the first is known behind it, and have no gap; none are known of its
        last token, and R may be 0.
        """


@runtime_checkable
class MirrorsProcessors(Protocol[Request]):
    """A target that says what its processors do to a request, as far as it follows from ids alone.

    The drafter does the same to its own logits, so that q is near p. Any q is lossless: what is
    left out, or is only nearly so, costs accepted drafts and nothing else.
    """

    def processors(self, context: Request) -> Sequence[Processor]:
        """Return them in the order in which they are applied, as they are set now.

        Asked once for a request, and again where its :class:`draftwire.verifier.context
        .HasSettings` has changed. Positions are those of the committed text, prompt included; ids
        and numbers that no STEP can carry are left out by the caller.
        """


@runtime_checkable
class HasDevice(Protocol):
    """A target that knows where its scores will lie, so that kernels are made ready before them."""

    @property
    def device(self) -> str:
        """As torch names it."""

    @property
    def row_width(self) -> int:
        """Columns of its scores: V, or more where the model's vocabulary is padded."""
