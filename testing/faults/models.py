"""Cheap models for runs of many processes: rows of a fixed table, no torch, no training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from testing.toys.models import Table, ToyDrafter, ToyTarget

WIDTH: Final = 64
"""V of these models."""


@dataclass(frozen=True)
class Rows:
    """A table by the last two tokens; what it holds is fixed by the salt, and it never grows.

    salt: target and drafter share it, so that most drafts are accepted; sharpness: how far apart
    the weights of one row are.
    """

    salt: int
    sharpness: float = 2.0
    weights: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Draw the rows once."""
        scores = np.random.default_rng(self.salt).normal(size=(4 * WIDTH, WIDTH))
        object.__setattr__(self, "weights", np.exp(scores * self.sharpness))

    def __call__(self, context: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the weights after a context."""
        before = context[-2] if len(context) > 1 else 0
        row: NDArray[np.float64] = self.weights[context[-1] + WIDTH * (before % 4)]
        return row


def target(salt: int = 1) -> ToyTarget:
    """Return a target."""
    return ToyTarget(_table(salt, 2.0), WIDTH)


def drafter(salt: int = 1) -> ToyDrafter:
    """Return a drafter whose q is near the p of the target of the same salt."""
    return ToyDrafter(_table(salt, 1.6), WIDTH)


def _table(salt: int, sharpness: float) -> Table:
    return Rows(salt, sharpness)  # type: ignore[return-value]  # an array is a sequence of numbers
