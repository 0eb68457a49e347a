"""The k largest of a row of candidates on the device: k rounds of a largest composite key (A5, A8).

For the few candidates of a merge. Over a whole vocabulary a support is chosen by
:mod:`draftwire.kernels.triton.select`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire.kernels.triton.tiles import key_of, widened

_LAST_ID = tl.constexpr((1 << 24) - 1)


@triton.jit
def top_k_kernel(logits, ids, out, out_ids, N, W, k, ROWS: tl.constexpr, SPREAD: tl.constexpr):
    """Largest first, ties to the lowest id, pads (-inf, -1) last; W candidates a row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    col = tl.arange(0, SPREAD)
    mask = (row < N)[:, None] & (col < W)[None, :]
    at = row[:, None] * W + col[None, :]
    z = widened(tl.load(logits + at, mask=mask, other=float("-inf")))
    token = tl.load(ids + at, mask=mask, other=-1)
    order = key_of(z).to(tl.int64)
    order = tl.where(order == -1, 0, order) + 0x80000001
    # 33 bits of order, then the id turned round: one key of 57 bits, unique among real candidates.
    composite = (order << 24) | (-token + _LAST_ID).to(tl.int64)
    composite = tl.where(token >= 0, composite, 0)
    for place in range(k):
        best = tl.max(composite, axis=1)
        here = (composite == best[:, None]) & (best > 0)[:, None]
        value = tl.max(tl.where(here, z, float("-inf")), axis=1)
        chosen = tl.max(tl.where(here, token, -1), axis=1)
        tl.store(out + row * k + place, value, mask=row < N)
        tl.store(out_ids + row * k + place, chosen, mask=row < N)
        composite = tl.where(here, 0, composite)
