"""A16-A21 on tensors of a device: what the host needs of each row, and draws with a bound.

p is ``a_v / A`` with a_v = exp64(z_v - max) of A4 (A24). The sums here use the library's own
exponential, which is faster and within the bound of :func:`draftwire.kernels.protocol.bound_of`. A
draw inside its bound is left to exact integers, never guessed. No operation waits for the host, and
shapes depend on shapes alone: each of these functions can be captured in a graph.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from draftwire.kernels.protocol import NO_TOKEN, QRows, bound_of
from draftwire.wire.registry import TOTAL

_ROWS_AT_ONCE: Final = 64  # in binary64: 66 MB for a vocabulary of 129,280


def draw(q: QRows[Tensor], uniform24: Tensor) -> Tensor:
    """The token of each 24-bit word, int64 (N,), NO_TOKEN where the counts end before it (A16)."""
    cumulative = q.counts.cumsum(1, dtype=torch.int32)
    at = (cumulative <= uniform24[:, None]).sum(1)
    inside = at < q.counts.shape[1]
    at = at.clamp_(max=q.counts.shape[1] - 1)
    tokens = at if q.ids is None else q.ids.gather(1, at[:, None])[:, 0].to(torch.int64)
    return tokens.masked_fill(~inside, NO_TOKEN)


def measure(scores: Tensor, tokens: Tensor) -> Tensor:
    """Largest score, score of one token and mass of each row: binary64 (R, 3).

    scores: (R, V); tokens: int64 (R,). mass: the sum of exp(score - largest); of no meaning in a
    row whose largest score is not finite.
    """
    largest = scores.amax(1)
    score = scores.gather(1, tokens[:, None])[:, 0]
    masses = [_weights(scores[part], largest[part]).sum(1) for part in _parts(len(scores))]
    columns = (largest.to(torch.float64), score.to(torch.float64), torch.cat(masses))
    return torch.stack(columns, 1)


def lowest(scores: Tensor) -> Tensor:
    """The lowest id with the largest score of each row, int64 (R,); V where one is NaN (A21)."""
    size = scores.shape[1]
    ids = torch.arange(size, dtype=torch.int32, device=scores.device)
    best = scores == scores.amax(1, keepdim=True)
    return torch.where(best, ids, size).amin(1).to(torch.int64)


def sample(scores: Tensor, rows: Tensor, q: Tensor | None, first: Tensor) -> Tensor:
    """A token from max(p - q, 0) of each row, or from p where its q is 0 everywhere (A19, A20).

    scores: (R, V), the rows sound; rows: int64 (N,); q: counts int32 (N, V), None for no q at all;
    first: int64 (N,), 48 bits of U. Returns int64 (N,), NO_TOKEN within the bound.
    """
    parts = [
        _sampled(scores[rows[part]], None if q is None else q[part], first[part])
        for part in _parts(len(rows))
    ]
    return torch.cat(parts)


def _parts(count: int) -> list[slice]:
    """The rows of a batch, some at a time: binary64 takes twice the memory of the scores."""
    return [slice(at, at + _ROWS_AT_ONCE) for at in range(0, count, _ROWS_AT_ONCE)]


def _sampled(scores: Tensor, q: Tensor | None, first: Tensor) -> Tensor:
    values = _weights(scores, scores.amax(1))
    values.mul_(TOTAL / values.sum(1, keepdim=True))
    if q is not None:
        values.sub_(q).clamp_(min=0.0)
    return _located(values, first)


def _weights(scores: Tensor, largest: Tensor) -> Tensor:
    return scores.to(torch.float64).sub_(largest.to(torch.float64)[:, None]).exp_()


def _located(values: Tensor, first: Tensor) -> Tensor:
    """The id whose interval surely holds U (A15). values: of a mass of 2^24 at most, (N, V)."""
    last = values.shape[1] - 1
    slack = TOTAL * bound_of(values.shape[1])
    cumulative = values.cumsum(1)
    total = cumulative[:, -1]
    unit = first.to(torch.float64) * 2.0**-48  # exact, and so is the next one up
    at = (cumulative <= (unit * total)[:, None]).sum(1).clamp_(max=last)
    after = cumulative.gather(1, at[:, None])[:, 0]
    before = cumulative.gather(1, (at - 1).clamp_(min=0)[:, None])[:, 0].mul_(at > 0)
    low = unit * (total - slack)
    high = (unit + 2.0**-48) * (total + slack)
    # U is not below 0 and not 1: the first id needs no lower edge, and the last no upper one.
    sure = (before + slack <= low) | (at == 0)
    sure = sure & ((high <= after - slack) | (at == last)) & (total > 0)
    return at.masked_fill(~sure, NO_TOKEN)
