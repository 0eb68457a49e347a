"""Selection on tensors without sorting: digits from the top, as many rounds whatever the values.

Shapes: keys int64 (N, n), non-negative; one choice a row. No operation here waits for the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

_DIGIT = 11  # bits a round at most: 2048 buckets


def digit_bits(size: int) -> int:
    """Bits of a digit for rows of ``size`` keys: a histogram no wider than the row."""
    return min(_DIGIT, max(1, size.bit_length()))


def threshold_of(
    keys: Tensor, needed: Tensor, width: int, *, by_mass: bool = False
) -> tuple[Tensor, Tensor]:
    """Where the largest keys of a row reach ``needed`` keys, or ``needed`` mass.

    keys: each in [0, 2^width); needed: int64 (N,), in 1..n, or in 1..sum of the row's keys.
    Returns (threshold, ties), both (N,): every key above the threshold is needed, and ``ties`` of
    those that equal it. Where needed is 0 the ties are.
    """
    step = digit_bits(keys.shape[1])
    prefix = torch.zeros_like(needed)
    shift = width
    while shift > 0:
        bits = min(step, shift)
        shift -= bits
        upper = keys >> shift
        inside = (upper >> bits) == prefix[:, None]
        values = keys * inside if by_mass else inside.to(torch.int64)
        buckets = torch.zeros(len(keys), 1 << bits, dtype=torch.int64, device=keys.device)
        buckets.scatter_add_(1, upper & ((1 << bits) - 1), values)
        above = values.sum(1, keepdim=True) - buckets.cumsum(1)
        # The bucket in which the sum from the top reaches ``needed``: that many lie below it.
        digit = (above >= needed[:, None]).sum(1).clamp_(max=(1 << bits) - 1)
        needed = needed - above.gather(1, digit[:, None])[:, 0]
        prefix = (prefix << bits) | digit
    if by_mass:
        least = prefix.clamp(min=1)
        return prefix, torch.div(needed + least - 1, least, rounding_mode="floor")
    return prefix, needed


def chosen(keys: Tensor, threshold: Tensor, ties: Tensor) -> Tensor:
    """Which keys a threshold and its ties name, the first ties of each row: bool (N, n)."""
    equal = keys == threshold[:, None]
    order = equal.cumsum(1, dtype=torch.int32)
    return (keys > threshold[:, None]) | (equal & (order <= ties[:, None]))


def compact(kept: Tensor, values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The first ``width`` kept columns of each row, ascending: ids int32 (N, width) and values.

    kept: bool (N, n); unused places have id -1 and value 0.
    """
    place = kept.cumsum(1).sub_(1)
    # What is not kept, or does not fit, goes to one place more, which is cut off.
    place = torch.where(kept & (place < width), place, width)
    columns = torch.arange(kept.shape[1], device=kept.device, dtype=torch.int32).expand(kept.shape)
    ids = torch.full((len(kept), width + 1), -1, dtype=torch.int32, device=kept.device)
    out = torch.zeros((len(kept), width + 1), dtype=values.dtype, device=kept.device)
    ids.scatter_(1, place, columns)
    out.scatter_(1, place, values)
    return ids[:, :width].contiguous(), out[:, :width].contiguous()
