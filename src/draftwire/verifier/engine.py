"""What a target model must offer: the weights of p at each position, with the drafts in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftwire.verifier.sampling import Sampling
from draftwire.wire.identity import ModelIdentity

Context = TypeVar("Context")


class TargetEngine(ModelIdentity, Protocol[Context]):
    """A target model together with its unchanged processors (penalties, masks, temperature, top-k).

    ``Context``: the opaque state of one request.
    """

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids that end a text."""

    def open(self, prompt: Sequence[int], sampling: Sampling) -> Context:
        """Begin a request: ``prompt`` has at least one id, all in [0, V)."""

    def score(
        self, context: Context, committed: Sequence[int], drafts: Sequence[int]
    ) -> NDArray[np.float64]:
        """Return the weights of p at the K+1 positions after ``committed``, drafts in place.

        committed: the whole committed sequence, prompt included; it only ever grows, and whatever
        the engine cached beyond it (rejected drafts of the call before) is rolled back here.
        drafts: K ids. Returns binary64 (K+1, V): row i is the unnormalised p of what follows
        ``committed + drafts[:i]``, after every processor, exactly what this engine would sample
        from; temperature 0 gives one weight on the lowest id with the largest score (A21). The
        caller may keep the array until the next call. Rows are judged (A11) by the verification,
        not here.
        """

    def close(self, context: Context) -> None:
        """Free what the request holds; it is not used again."""
