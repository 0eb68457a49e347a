"""What a request's own parameters make of its rows, where vLLM's speculative path leaves it out.

vLLM applies neither ``logit_bias`` nor ``min_p`` to rows with drafts, and what it keeps of equal
scores under top-k depends on the device, on the sampler it chose and, under top-p, on the number of
rows. Here every row is a function of its own scores and its own request: a row is changed only by
what its request asks for, so p of a request is the same alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def rows_of(counts: Sequence[int]) -> list[slice]:
    """Return the rows of each request, of which it has ``counts``, one request after another."""
    slices, first = [], 0
    for count in counts:
        slices.append(slice(first, first + count))
        first += count
    return slices


def add_bias(rows: torch.Tensor, requests: Sequence[Any], counts: Sequence[int]) -> None:
    """Add the ``logit_bias`` of each request's SamplingParams to its rows, in place.

    rows: (R, V) float32, raw. vLLM adds it before penalties, so this comes before all processors;
    ids that another processor forbids stay at -inf either way.
    """
    for params, own in zip(requests, rows_of(counts), strict=True):
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), device=rows.device)
            bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)
            rows[own, ids] += bias.to(rows.device)


def cut_min_p(rows: torch.Tensor, requests: Sequence[Any], counts: Sequence[int]) -> None:
    """Forbid what is less likely than ``min_p`` times the likeliest, in place.

    rows: (R, V) float32 after temperature, before top-k and top-p: vLLM's own order.
    """
    for params, own in zip(requests, rows_of(counts), strict=True):
        if params.min_p:
            p = torch.softmax(rows[own], -1)
            bound = p.amax(-1, keepdim=True) * torch.tensor(params.min_p, dtype=torch.float32)
            rows[own] = rows[own].masked_fill(p < bound, -torch.inf)


def cut_top(
    rows: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    counts: Sequence[int],
) -> None:
    """Forbid all but each request's top-k, then all but top-p of that, in place.

    rows: (R, V) float32. top_k, top_p: (B,), V and 1 = off; None = off for all. All scores equal to
    the k-th stay; of equal ones at the border of top-p the higher ids do. So do vLLM's own torch
    functions, on which its CPU build stands.
    """
    repeats = torch.tensor(counts, device=rows.device)
    if top_k is not None:
        k = top_k.to(rows.device).long().repeat_interleave(repeats)
        (restricted,) = torch.nonzero(k < rows.shape[1], as_tuple=True)
        if len(restricted):
            own, k = rows[restricted], k[restricted]
            kth = own.topk(int(k.max()), -1).values.gather(1, k[:, None] - 1)
            rows[restricted] = own.masked_fill(own < kth, -torch.inf)
    if top_p is not None:
        p = top_p.to(rows.device, torch.float32).repeat_interleave(repeats)
        (restricted,) = torch.nonzero(p < 1, as_tuple=True)
        if len(restricted):
            own = rows[restricted]
            ascending, ids = own.sort(dim=-1, stable=True)
            below = ascending.softmax(-1).cumsum(-1) <= 1 - p[restricted, None]
            below[:, -1] = False  # the likeliest always stays
            kept = ascending.masked_fill(below, -torch.inf)
            rows[restricted] = own.scatter(-1, ids, kept)
