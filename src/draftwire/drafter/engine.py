"""What a drafting model must offer: open, truncate and feed a context, batched over sessions.

The engine knows nothing of sockets, policies, counts or words. It turns tokens into logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftwire.wire.identity import ModelIdentity
from draftwire.wire.registry import Adaptation


class DraftContext(Protocol):
    """The state of one sequence inside an engine (a KV cache, for instance), opaque to callers."""

    @property
    def length(self) -> int:
        """Tokens that this context holds the state of."""


Context = TypeVar("Context", bound=DraftContext)


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

    def forward(self, batch: Sequence[tuple[Context, Sequence[int]]]) -> NDArray[np.float32]:
        """Feed at least one token to each context and return the logits after the last one.

        batch: B different contexts, each with its new tokens (lengths may differ). Returns binary32
        (B, V), rows in the order of the batch; a row depends on its own tokens alone. Where it does
        so to the bit, a seed repeats its text in any company; where the model's rounding depends
        on the batch, the law is the same. Raises only when the whole batch failed.
        """


def one_by_one(
    forward: Callable[[Context, Sequence[int]], NDArray[np.float32]],
    batch: Sequence[tuple[Context, Sequence[int]]],
) -> NDArray[np.float32]:
    """Return what ``DraftEngine.forward`` does, for an engine that takes one context at a time.

    forward: feeds tokens to one context, returns binary32 (V,). When it raises, the contexts behind
    that one are as before.
    """
    return np.stack([forward(context, tokens) for context, tokens in batch])
