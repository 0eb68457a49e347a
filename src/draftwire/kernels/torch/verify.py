"""A16-A20 on tensors: draws in integers, verification in binary64 with a bound around every choice.

p is ``a_v / A`` with a_v = exp64(z_v - max) of A4 (A24). The sums here use the library's own
exponential, which is faster and within the bound of :func:`draftwire.kernels.backend.bound_of`; the
weight of the draft itself is A4's. A choice inside its bound is UNDECIDED, never guessed.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.kernels.backend import (
    NO_TOKEN,
    P_CUTOFF,
    UNDECIDED,
    Drawn,
    Draws,
    QRows,
    Verdicts,
    bound_of,
)
from draftwire.kernels.torch.quantise import check_logits, exp64, row_status
from draftwire.wire.registry import TOTAL

SPAN: Final = 1 << 48  # values of the first two words


def draw(q: QRows[Tensor], words: Tensor) -> Tensor:
    """The token of each word; see ``Backend.draw``."""
    cumulative = q.counts.cumsum(1, dtype=torch.int32)
    at = (cumulative <= words[:, None]).sum(1)
    inside = at < q.counts.shape[1]
    at = at.clamp_(max=q.counts.shape[1] - 1)
    tokens = at if q.ids is None else q.ids.gather(1, at[:, None])[:, 0].to(torch.int64)
    return tokens.masked_fill(~inside, NO_TOKEN)


def lookup(q: QRows[Tensor], tokens: Tensor) -> Tensor:
    """Counts at one global id a row, any leading axes; see ``Backend.lookup``."""
    inside = (tokens >= 0) & (tokens < q.vocab_size)
    if q.ids is None:
        found = q.counts.gather(-1, tokens.masked_fill(~inside, 0)[..., None])[..., 0]
        return found.to(torch.int64).mul_(inside)
    same = (q.ids == tokens[..., None]) & inside[..., None]
    return (q.counts * same).sum(-1)


def _weights(logits: Tensor, largest: Tensor) -> Tensor:
    return logits.to(torch.float64).sub_(largest[..., None]).exp_()


def _residual(logits: Tensor, q: QRows[Tensor], keep: Tensor) -> tuple[Tensor, Tensor]:
    """max(p - keep * q, 0) in tickets, float64 (N, V), and the status. keep: 1 or 0 a row."""
    largest, status = row_status(logits)
    weights = _weights(logits, largest)
    scale = TOTAL / weights.sum(1, keepdim=True)
    weights.mul_(scale)
    counts = q.counts * keep[:, None]
    if q.ids is None:
        weights.sub_(counts)
    else:
        places = q.ids.to(torch.int64).clamp_(min=0)  # a pad takes 0 tickets from id 0
        weights.scatter_add_(1, places, counts.to(torch.float64).neg_())
    return weights.clamp_(min=0.0), status


def residual_mass(logits: Tensor, q: QRows[Tensor]) -> Tensor:
    """sum(max(p - q, 0)) of each row; see ``Backend.residual_mass``."""
    check_logits(logits, 2)
    values, status = _residual(logits, q, torch.ones_like(logits[:, 0], dtype=torch.int32))
    return (values.sum(1) / TOTAL).masked_fill(status != 0, torch.nan)


def find(values: Tensor, first: Tensor, status: Tensor, rejected: Tensor) -> Drawn[Tensor]:
    """The id whose interval surely holds U, or why none (A15).

    values: tickets, float64 (N, V), the true ones summing to 2^24 at most; first: int64 (N,);
    status: of the rows; rejected: bool (N,), no mass is then ZERO_RESIDUAL.
    """
    slack = TOTAL * bound_of(values.shape[1])
    cumulative = values.cumsum(1)
    total = cumulative[:, -1]
    unit = first.to(torch.float64) * 2.0**-48  # exact, and so is the next one up
    at = (cumulative <= (unit * total)[:, None]).sum(1).clamp_(max=values.shape[1] - 1)
    after = cumulative.gather(1, at[:, None])[:, 0]
    before = cumulative.gather(1, (at - 1).clamp_(min=0)[:, None])[:, 0].mul_(at > 0)
    low = unit * (total - slack)
    high = (unit + 2.0**-48) * (total + slack)
    # U is not below 0 and not 1: the first id needs no lower edge, and the last no upper one.
    sure = (before + slack <= low) | (at == 0)
    sure = sure & ((high <= after - slack) | (at == values.shape[1] - 1))
    empty = (total == 0) & rejected & (status == 0)
    status = status.masked_fill(empty, int(RefusalCode.ZERO_RESIDUAL))
    status = status.masked_fill(~sure & (status == 0), UNDECIDED)
    return Drawn(at.masked_fill(status != 0, NO_TOKEN), status)


def correction(logits: Tensor, q: QRows[Tensor], first: Tensor) -> Drawn[Tensor]:
    """A token from the residual; see ``Backend.correction``."""
    check_logits(logits, 2)
    every = torch.ones_like(first, dtype=torch.int32)
    values, status = _residual(logits, q, every)
    return find(values, first, status, every > 0)


def target(logits: Tensor, first: Tensor) -> Drawn[Tensor]:
    """A token from p alone; see ``Backend.target``."""
    check_logits(logits, 2)
    largest, status = row_status(logits)
    weights = _weights(logits, largest)
    weights.mul_(TOTAL / weights.sum(1, keepdim=True))
    return find(weights, first, status, torch.zeros_like(first, dtype=torch.bool))


def _judge(
    logits: Tensor, tokens: Tensor, q: QRows[Tensor], first: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Each of (B, K) drafts by itself: accepted, status of its row, fault of its q (A18)."""
    size = logits.shape[-1]
    rows = logits[:, : tokens.shape[1]]
    largest, status = row_status(rows)
    inside = (tokens >= 0) & (tokens < size)
    fault = torch.zeros_like(status)
    count = lookup(q, tokens)
    fault = fault.masked_fill(count == 0, int(RefusalCode.ZERO_Q))
    fault = fault.masked_fill(~inside, int(RefusalCode.OUT_OF_RANGE))
    at = tokens.masked_fill(~inside, 0)
    u = first.to(torch.float64)
    sums = _weights(rows, largest).sum(-1)
    score = rows.gather(2, at[..., None])[..., 0].to(torch.float64)
    d = score - largest
    weight = exp64(d.clamp(min=P_CUTOFF, max=0.0)).mul_(d >= P_CUTOFF)
    threshold = weight * float(TOTAL * SPAN) / (count.clamp(min=1) * sums)
    margin = threshold * bound_of(size)
    yes = (threshold - margin >= SPAN) | (u + 1 <= threshold - margin)
    # first = 0 never surely rejects a weight above zero, even where the threshold underflows.
    no = (weight == 0) | ((first > 0) & (u >= threshold + margin))
    undecided = ~(yes | no) & (status == 0)
    status = status.masked_fill(undecided, UNDECIDED)
    return yes & ~no & (status == 0), status, fault


def check_round(logits: Tensor, tokens: Tensor, q: QRows[Tensor]) -> None:
    """Refuse a round whose shapes are not (B, K + 1, V), (B, K) and (B, K, ...) (OUT_OF_RANGE)."""
    check_logits(logits, 3)
    batch, depth = tokens.shape
    if logits.shape[:2] != (batch, depth + 1) or q.counts.shape[:2] != (batch, depth) or depth < 1:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE,
            f"K >= 1 drafts {tuple(tokens.shape)} need K + 1 rows of p and K of q, not "
            f"{tuple(logits.shape)} and {tuple(q.counts.shape)}",
        )


def verify(
    logits: Tensor, tokens: Tensor, q: QRows[Tensor], draws: Draws[Tensor]
) -> Verdicts[Tensor]:
    """Judge K drafts of each of B requests; see ``Backend.verify``."""
    check_round(logits, tokens, q)
    batch, depth = tokens.shape
    size = logits.shape[-1]
    accept, judged, fault = _judge(logits, tokens, q, draws.acceptance)
    accepted = accept.to(torch.int64).cumprod(1).sum(1)
    rejected = accepted < depth
    stop = accepted.clamp(max=depth - 1)[:, None]
    status = judged.gather(1, stop)[:, 0].mul(rejected)
    # The first fault of a q, by position, comes before everything: no row was to be looked at.
    faulty = (fault != 0).to(torch.int64)
    where = (faulty.cumsum(1) == 0).sum(1).clamp_(max=depth - 1)[:, None]
    wrong = fault.gather(1, where)[:, 0]
    row = torch.arange(batch, device=logits.device)
    last = logits.reshape(-1, size).index_select(0, row * (depth + 1) + accepted)
    at = row * depth + stop[:, 0]
    flat = QRows(
        q.vocab_size,
        None if q.ids is None else q.ids.reshape(batch * depth, -1).index_select(0, at),
        q.counts.reshape(batch * depth, -1).index_select(0, at),
    )
    first = torch.where(rejected, draws.correction.gather(1, stop)[:, 0], draws.bonus)
    values, own = _residual(last, flat, rejected.to(torch.int32))
    # A row refused or undecided before this draw stays so; the draw brings its own faults.
    status = torch.where(status == 0, own, status)
    drawn = find(values, first, status, rejected)
    status = torch.where(wrong != 0, wrong, drawn.status)
    sound = status == 0
    return Verdicts(accepted * sound, drawn.tokens.masked_fill(~sound, NO_TOKEN), status)
