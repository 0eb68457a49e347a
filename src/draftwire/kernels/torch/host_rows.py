"""Rows of scores on the CPU: one after another, each only when a decision asks for it.

A device measures all rows at once (:mod:`draftwire.kernels.torch.device_rows`), because a decision
that waits there costs more than a row. On a CPU a row costs more than anything: rows behind a
rejection are not touched, and a row is looked at in binary32 first, within a bound that leaves few
decisions to binary64. The rule over both is one (:mod:`draftwire.kernels.torch.rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from draftwire.kernels.protocol import bound_of
from draftwire.kernels.rows import QRow
from draftwire.kernels.torch.rounds import SPAN, Sample, decide
from draftwire.wire.registry import TOTAL

_BLOCK: Final = 64  # terms of a sum in the row's own precision; sums of blocks are binary64

FIRST_BOUND: Final = 2.0**-16
"""How far a sum or prefix in binary32 may be from the truth, relative to the whole mass.

With u = 2^-24: a weight exp(d) has a relative error of |d| u for its rounded argument, 32 u for an
exponential of 16 ulp. Weighted by p, |d| is at most ln V < 16.7 on average, because the entropy of
p is ln A + mean |d| and A >= 1. A block of 64 terms in any order adds 64 u. A prefix of the
residual meets twice of each and 8 roundings: ``(2 * (16.7 + 32) + 2 * 64 + 8) u < 234 u``; what is
lost to underflow, V * 2^-126, is nothing beside it.
"""


class HostRows:
    """Implements :class:`draftwire.kernels.torch.rounds.Rows` for (R, V) scores on the CPU."""

    def __init__(self, scores: Tensor, looks: tuple[Look, Look]) -> None:
        """Look at ``scores`` through binary32, then binary64."""
        self.number, self.size = scores.shape
        self._scores = scores
        self._looks = looks
        for look in looks:
            look.forget()
        self._row = -1
        self._logits = scores
        self._largest = 0.0

    def largest(self, row: int) -> float:
        """The largest score of a row."""
        if row != self._row:
            self._row, self._logits = row, self._scores[row].to(torch.float32)
            self._largest = float(self._logits.amax())
        return self._largest

    def lowest(self, row: int) -> int:
        """The lowest id with the largest score."""
        largest = self.largest(row)
        return int((self._logits == largest).to(torch.uint8).argmax())

    def accepts(self, row: int, token: int, count: int, first: Callable[[], int]) -> bool | None:
        """Whether a draft stands (A18)."""
        largest = self.largest(row)
        difference = float(self._logits[token]) - largest
        for look in self._looks:
            mass = look.mass(row, self._logits, largest)
            stands = decide(difference, count, mass, look.bound, first)
            if stands is not None:
                return stands
        return None

    def sample(self, samples: Sequence[Sample]) -> list[int | None]:
        """The token of each sample (A19, A20)."""
        return [self._token(each) for each in samples]

    def _token(self, sample: Sample) -> int | None:
        largest = self.largest(sample.row)
        for look in self._looks:
            look.mass(sample.row, self._logits, largest)
            token = look.draw(sample.q, sample.first)
            if token is not None:
                return token
        return None


class Look:
    """The weights of one row in one precision. bound: of its sums and prefixes, see FIRST_BOUND."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        """Make room for a row of ``size`` columns."""
        self.bound = FIRST_BOUND if dtype is torch.float32 else bound_of(size)
        self._dtype = dtype
        self._size = size
        padded = torch.zeros(-(-size // _BLOCK) * _BLOCK, dtype=dtype)
        self._blocks, self._weights = padded.view(-1, _BLOCK), padded[:size]
        self.forget()

    def forget(self) -> None:
        """Hold the weights of no row."""
        self._row, self._mass = -1, 0.0

    def mass(self, row: int, logits: Tensor, largest: float) -> float:
        """The sum of exp(logit - largest) of a row, whose weights are held from now on."""
        if row != self._row:
            torch.sub(logits.to(self._dtype), largest, out=self._weights).exp_()
            self._row, self._mass = row, float(self._blocks.sum(1).sum(dtype=torch.float64))
        return self._mass

    def draw(self, q: QRow | None, first: int) -> int | None:
        """A token from max(p - q, 0), or from p, of the row that is held, and no more after it."""
        if q is not None:
            self._subtract(q, self._mass / TOTAL)
        self._row = -1
        cumulative = self._blocks.sum(1).numpy().cumsum(dtype=np.float64)
        total, unit = float(cumulative[-1]), first / SPAN
        middle, slack = unit * total, self._mass * self.bound
        block = min(int(cumulative.searchsorted(middle, "right")), len(cumulative) - 1)
        before = after = float(cumulative[block - 1]) if block else 0.0
        token = block * _BLOCK - 1
        for weight in self._blocks[block].tolist():
            token, before = token + 1, after
            after += weight
            if after > middle or token == self._size - 1:
                break
        # U is not below 0 and not 1: the first id needs no lower edge, and the last no upper one.
        above = token == 0 or before + slack <= unit * (total - slack)
        high = (first + 1) / SPAN * (total + slack)
        below = token == self._size - 1 or high <= after - slack
        sure = total > 0 and above and below
        return token if sure else None

    def _subtract(self, q: QRow, scale: float) -> None:
        """max(p - q, 0) in the place of p, in units of the weights."""
        counts = torch.from_numpy(q.counts)
        if q.ids is None:
            head = self._weights[: q.vocab_size]
            head.sub_(counts, alpha=scale).clamp_(min=0.0)
        else:
            places = torch.from_numpy(q.ids).to(torch.int64)
            left = self._weights[places].sub_(counts, alpha=scale).clamp_(min=0.0)
            self._weights[places] = left
