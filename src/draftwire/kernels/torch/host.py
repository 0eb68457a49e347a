"""Verification of tensors on a CPU: one row after another, and only the rows that are needed.

The same decisions as :mod:`draftwire.kernels.torch.verify` takes for a device, where nothing may
wait for a value. Here a draft is looked at in binary32 first, which is enough for all but about one
in fifty, and the rows behind a rejection are not touched; two working rows serve a whole round.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from draftwire.errors import RefusalCode
from draftwire.exact.quantise import exp64
from draftwire.kernels.backend import (
    NO_TOKEN,
    OK,
    P_CUTOFF,
    UNDECIDED,
    Draws,
    QRows,
    Verdicts,
    bound_of,
)
from draftwire.kernels.torch.quantise import row_status
from draftwire.kernels.torch.verify import SPAN, check_round, lookup
from draftwire.wire.registry import TOTAL

_BLOCK: Final = 512  # terms a block of a sum
_CLEAR: Final = 2.0**-100  # a binary32 probability above it has met no subnormal
_LARGEST_BOUND: Final = 0.25  # beyond it the analysis of the first look does not hold


def first_bound(size: int) -> float:
    """How far a binary32 softmax over ``size`` logits may be from p, relatively.

    Twice the error of an exponential (its argument |d| <= 88 rounded to 24 bits, and 20 ulp), a sum
    in any order (V - 1 additions) and one quotient stay below ``1.05 V 2^-24 + 2^-15``.
    """
    return 1.05 * size * 2.0**-24 + 2.0**-15


def verify(
    logits: Tensor, tokens: Tensor, q: QRows[Tensor], draws: Draws[Tensor]
) -> Verdicts[Tensor]:
    """Judge K drafts of each of B requests; see ``Backend.verify``."""
    check_round(logits, tokens, q)
    batch, depth = tokens.shape
    counts, drafts = lookup(q, tokens).tolist(), tokens.tolist()
    acceptance, correction = draws.acceptance.tolist(), draws.correction.tolist()
    bonus = draws.bonus.tolist()
    work = _Work(logits.shape[-1])
    made = []
    for index in range(batch):
        status = _fault(drafts[index], counts[index], logits.shape[-1])
        accepted, token = 0, NO_TOKEN
        while status == OK and accepted < depth:
            row, word = logits[index, accepted], acceptance[index][accepted]
            found = work.accepts(row, drafts[index][accepted], counts[index][accepted], word)
            if found is not True:
                status = found or OK
                break
            accepted += 1
        if status == OK:
            rejected = accepted < depth
            own = _row(q, index, accepted) if rejected else None
            word = correction[index][accepted] if rejected else bonus[index]
            token, status = work.draw(logits[index, accepted], own, word)
        made.append((accepted if status == OK else 0, token, int(status)))
    columns = torch.tensor(made, dtype=torch.int64).unbind(1)
    return Verdicts(columns[0], columns[1], columns[2].to(torch.int32))


def _fault(drafts: list[int], counts: list[int], size: int) -> int:
    """The first fault of a draft, by position; it comes before any row is looked at."""
    for token, count in zip(drafts, counts, strict=True):
        if not 0 <= token < size:
            return RefusalCode.OUT_OF_RANGE
        if count == 0:
            return RefusalCode.ZERO_Q
    return OK


def _row(q: QRows[Tensor], index: int, at: int) -> QRows[Tensor]:
    ids = None if q.ids is None else q.ids[index, at]
    return QRows(q.vocab_size, ids, q.counts[index, at])


class _Work:
    """Two working rows of V columns, and the decisions of one row that use them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._bound = bound_of(size)
        self._first = first_bound(size)
        self._binary32 = torch.empty(size)
        padded = torch.zeros(-(-size // _BLOCK) * _BLOCK, dtype=torch.float64)
        self._blocks, self._row = padded.view(-1, _BLOCK), padded[:size]

    def accepts(self, logits: Tensor, token: int, count: int, first: int) -> int:
        """Whether a draft stands, or why that is not known (A18). False or OK: it falls."""
        if self._first <= _LARGEST_BOUND:
            torch.softmax(logits.to(torch.float32), 0, out=self._binary32)
            p = float(self._binary32[token])  # NaN in a row that is refused
            if p > _CLEAR:
                sure = _decide(p * (TOTAL * SPAN) / count, self._first, first)
                if sure is not None:
                    return sure
        largest, status = self._weigh(logits)
        if status != OK:
            return status
        d = float(logits[token]) - largest
        weight = exp64(d) if d >= P_CUTOFF else 0.0
        if weight == 0:
            return False
        mass = float(self._row.sum())
        sure = _decide(weight * (TOTAL * SPAN) / (count * mass), self._bound, first)
        return UNDECIDED if sure is None else sure

    def draw(self, logits: Tensor, q: QRows[Tensor] | None, first: int) -> tuple[int, int]:
        """A token from max(p - q, 0), or from p where q is None, or why none (A15, A19, A20)."""
        _, status = self._weigh(logits)
        if status != OK:
            return NO_TOKEN, status
        row = self._row.mul_(TOTAL / float(self._row.sum()))
        if q is not None and q.ids is None:
            row.sub_(q.counts).clamp_(min=0.0)
        elif q is not None and q.ids is not None:
            used = q.ids >= 0
            row[q.ids[used].to(torch.int64)] -= q.counts[used]
            row.clamp_(min=0.0)
        sums = self._blocks.sum(1)
        total = float(sums.sum())
        if total == 0 and q is not None:
            return NO_TOKEN, RefusalCode.ZERO_RESIDUAL
        return self._find(sums, total, first)

    def _find(self, sums: Tensor, total: float, first: int) -> tuple[int, int]:
        slack = TOTAL * self._bound
        unit = first / SPAN
        middle = unit * total
        block = min(int((sums.cumsum(0) <= middle).sum()), len(sums) - 1)
        start = float(sums[:block].sum())
        inside = (self._blocks[block].cumsum(0) + start).tolist()
        width = min(_BLOCK, self._size - block * _BLOCK)
        within = next((at for at in range(width) if inside[at] > middle), width - 1)
        before = inside[within - 1] if within else start
        token = block * _BLOCK + within
        # U is not below 0 and not 1: the first id needs no lower edge, and the last no upper one.
        lower = token == 0 or before + slack <= unit * (total - slack)
        high = (first + 1) / SPAN * (total + slack)
        if lower and (token == self._size - 1 or high <= inside[within] - slack):
            return token, OK
        return NO_TOKEN, UNDECIDED

    def _weigh(self, logits: Tensor) -> tuple[float, int]:
        """The weights of a row in binary64; its largest logit and status."""
        largest, status = row_status(logits[None])
        if int(status):
            return math.nan, int(status)
        self._row.copy_(logits).sub_(float(largest)).exp_()
        return float(largest), OK


def _decide(threshold: float, bound: float, first: int) -> bool | None:
    """Whether U lies below a threshold of 2^48, None within its bound."""
    margin = threshold * bound
    if threshold - margin >= SPAN or first + 1 <= threshold - margin:
        return True
    # first = 0 never surely rejects: the threshold is above zero, even where it underflows.
    return False if first > 0 and first >= threshold + margin else None
