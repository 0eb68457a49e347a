"""Tiny engines for hidden states: the target's tell its tokens, and a drafter reads them there.

A drafter with all states before the anchor draws from the target's own table; with any of them
missing, from a flat row. So the right states show in the acceptance, and wrong ones cost it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import HiddenDtype
from draftwire.wire.states import StateFormat
from testing.toys.models import ToyContext, ToyDrafter, ToyRequest, ToyTarget

Rows = NDArray[np.float32]
WIDTH = 2


def state(token: int, position: int, layer: int) -> tuple[float, float]:
    """Return what a layer computes for a token: exact in bfloat16 for small numbers."""
    return token + 1.0, position + layer / 4


@dataclass
class StateRequest(ToyRequest):
    """A request of a StateTarget. kept: layers; fed: what the last pass has read."""

    kept: tuple[int, ...] = ()
    fed: list[int] = field(default_factory=list)
    begin: int = 0  # the first position whose states were kept


@dataclass
class StateTarget(ToyTarget):
    """A ToyTarget that yields states. changed: what becomes of the rows that it yields."""

    state_layers: int = 4
    state_width: int = WIDTH
    changed: Callable[[int, Rows], tuple[int, Rows]] = lambda first, rows: (first, rows)
    asked: list[tuple[int, int]] = field(default_factory=list)  # first and most
    yielded: list[tuple[int, int]] = field(default_factory=list)  # first and how many

    def open(self, prompt: Sequence[int], sampling: Sampling) -> StateRequest:
        """Begin a request."""
        request = StateRequest(sampling, list(prompt))
        self.requests.append(request)
        return request

    def score(
        self, context: ToyRequest, committed: Sequence[int], drafts: Sequence[int]
    ) -> NDArray[np.float64]:
        """Score, and compute states for all that is read."""
        assert isinstance(context, StateRequest)
        if not context.kept:
            context.begin = len(committed) + len(drafts)
        context.fed = [*committed, *drafts]
        return super().score(context, committed, drafts)

    def keep_states(self, context: StateRequest, layers: Sequence[int]) -> None:
        """Keep these from the next pass on."""
        context.kept = tuple(layers)

    def states(
        self, context: StateRequest, committed: Sequence[int], first: int, most: int
    ) -> tuple[int, Rows]:
        """Return the rows of committed tokens alone."""
        self.asked.append((first, most))
        end = 0
        for read, token in zip(context.fed, committed[:-1], strict=False):
            if read != token:
                break
            end += 1
        first = max(first, context.begin)
        places = range(first, max(min(end, first + most), first))
        rows = [
            [number for layer in context.kept for number in state(committed[at], at, layer)]
            for at in places
        ]
        shape = len(places), WIDTH * len(context.kept)
        first, changed = self.changed(first, np.array(rows, np.float32).reshape(shape))
        self.yielded.append((first, len(changed)))
        return first, changed


@dataclass
class StateContext(ToyContext):
    """A context of a StateDrafter. tokens_read: by position, out of states. anchor: of the round"""

    tokens_read: dict[int, int] = field(default_factory=dict)
    anchor: int | None = None


@dataclass
class StateDrafter(ToyDrafter):
    """A ToyDrafter that knows the text before the anchor from states alone."""

    layers: tuple[int, ...] = (1, 3)
    taken: list[tuple[int, int]] = field(default_factory=list)  # first and how many, each call
    informed: int = 0  # rows drawn with all states there
    flat: int = 0  # and without

    @property
    def state_format(self) -> StateFormat:
        """Its layers."""
        return StateFormat(self.layers, WIDTH, HiddenDtype.FLOAT32)

    @property
    def projection_digest(self) -> bytes:
        """That of :meth:`fuse`."""
        return b"p" * 32

    def fuse(self, rows: Rows) -> Rows:
        """Return the mean over the layers."""
        mean: Rows = rows.reshape(len(rows), len(self.layers), WIDTH).mean(1, dtype=np.float32)
        return mean

    def open(self) -> StateContext:
        """Return a context that holds nothing."""
        context = StateContext()
        self.contexts.append(context)
        return context

    def truncate(self, context: ToyContext, length: int) -> None:
        """Forget tokens and states from there on."""
        assert isinstance(context, StateContext)
        super().truncate(context, length)
        for position in [each for each in context.tokens_read if each >= length]:
            del context.tokens_read[position]
        context.anchor = None

    def take_states(self, context: StateContext, first: int, rows: Rows) -> None:
        """Read tokens out of states."""
        assert context.anchor is None
        assert np.isfinite(rows).all()
        assert len(rows)
        assert first >= self.states_held(context)
        self.taken.append((first, len(rows)))
        for position, row in enumerate(rows, first):
            context.tokens_read[position] = round(float(row[0])) - 1

    def states_held(self, context: StateContext) -> int:
        """Return how many are held without a gap."""
        held = 0
        while held in context.tokens_read:
            held += 1
        return held

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Return the logits of the target's table where all states are there, flat ones else."""
        self.batches.append(len(batch))
        rows: list[Sequence[float]] = []
        for context, tokens in batch:
            assert isinstance(context, StateContext)
            context.tokens.extend(tokens)
            self.extended += len(tokens)
            if context.anchor is None:
                context.anchor = len(context.tokens) - 1
                assert all(position < context.anchor for position in context.tokens_read)
            before = range(context.anchor)
            if all(position in context.tokens_read for position in before):
                read = [context.tokens_read[position] for position in before]
                rows.append(self.table((*read, *context.tokens[context.anchor :])))
                self.informed += 1
            else:
                rows.append([1.0] * self.vocab_size)
                self.flat += 1
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(rows, dtype=np.float64)).astype(np.float32)
