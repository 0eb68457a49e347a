"""Philox 4x32-10 on the device: the words of A13, one address a lane."""

from __future__ import annotations

import triton
import triton.language as tl

_M0 = tl.constexpr(0xD2511F53)
_M1 = tl.constexpr(0xCD9E8D57)
_W0 = tl.constexpr(0x9E3779B9)
_W1 = tl.constexpr(0xBB67AE85)
_U32 = tl.constexpr(0xFFFFFFFF)
_WORD_SHIFT = tl.constexpr(8)  # a word is the upper 24 bits of a lane


@triton.jit
def _product(value, multiplier):
    """High and low 32 bits of a product of two u32 held as int64, without overflow."""
    upper = (value >> 16) * multiplier
    lower = (value & 0xFFFF) * multiplier
    middle = upper + (lower >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (lower & 0xFFFF)


@triton.jit
def philox_kernel(keys, addresses, out, N, COUNT: tl.constexpr, ROWS: tl.constexpr):
    """The first COUNT words of each address (generation, round, position) under its key."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    live = row < N
    k0 = tl.load(keys + row * 2, mask=live, other=0)
    k1 = tl.load(keys + row * 2 + 1, mask=live, other=0)
    c0 = tl.zeros([ROWS], tl.int64)
    c1 = tl.load(addresses + row * 3 + 2, mask=live, other=0)
    c2 = tl.load(addresses + row * 3 + 1, mask=live, other=0)
    c3 = tl.load(addresses + row * 3, mask=live, other=0)
    for _ in tl.static_range(10):
        high_0, low_0 = _product(c0, _M0)
        high_1, low_1 = _product(c2, _M1)
        c0 = high_1 ^ c1 ^ k0
        c1 = low_1
        c2 = high_0 ^ c3 ^ k1
        c3 = low_0
        k0 = (k0 + _W0) & _U32
        k1 = (k1 + _W1) & _U32
    tl.store(out + row * COUNT, c0 >> _WORD_SHIFT, mask=live)
    if COUNT > 1:
        tl.store(out + row * COUNT + 1, c1 >> _WORD_SHIFT, mask=live)
    if COUNT > 2:
        tl.store(out + row * COUNT + 2, c2 >> _WORD_SHIFT, mask=live)
    if COUNT > 3:
        tl.store(out + row * COUNT + 3, c3 >> _WORD_SHIFT, mask=live)
