"""What every Triton kernel here shares: tiles of rows and columns, exp64, the state of a row.

A program works on a tile of ROWS rows by BLOCK columns. On a GPU ROWS is 1 and the blocks of a row
run side by side; under the interpreter many rows go through one program. Multiplies and adds must
not be contracted (spec/arithmetic.md), so every launch switches fusion off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl

from draftwire.exact import quantise as exact

_LOG2E: Final = tl.constexpr(exact.LOG2E)
_LN2_HI: Final = tl.constexpr(exact.LN2_HI)
_LN2_LO: Final = tl.constexpr(exact.LN2_LO)
_C0: Final = tl.constexpr(exact.COEFFICIENTS[0])
_C1: Final = tl.constexpr(exact.COEFFICIENTS[1])
_C2: Final = tl.constexpr(exact.COEFFICIENTS[2])
_C3: Final = tl.constexpr(exact.COEFFICIENTS[3])
_C4: Final = tl.constexpr(exact.COEFFICIENTS[4])
_C5: Final = tl.constexpr(exact.COEFFICIENTS[5])
_C6: Final = tl.constexpr(exact.COEFFICIENTS[6])
_C7: Final = tl.constexpr(exact.COEFFICIENTS[7])
_C8: Final = tl.constexpr(exact.COEFFICIENTS[8])
_C9: Final = tl.constexpr(exact.COEFFICIENTS[9])
_C10: Final = tl.constexpr(exact.COEFFICIENTS[10])
_C11: Final = tl.constexpr(exact.COEFFICIENTS[11])
_KEY_INFINITY: Final = tl.constexpr(0x7F800000)
_KEY_MINUS_INFINITY: Final = tl.constexpr(-0x7F800001)
_NON_FINITE: Final = tl.constexpr(1)
_ZERO_MASS: Final = tl.constexpr(2)

_GPU_BLOCK: Final = 1024
_HOST_BLOCK: Final = 4096
_HOST_ELEMENTS: Final = 1 << 16  # of a tile under the interpreter
_GPU_DIGIT: Final = 11  # 2048 buckets: six passes for a remainder
_HOST_DIGIT: Final = 7  # under the interpreter a pass costs little more than its launch


@dataclass(frozen=True, slots=True)
class Tiling:
    """How rows are cut: rows and columns of a tile, and bits of a digit; 0 = chosen by shape."""

    rows: int = 0
    block: int = 0
    digit: int = 0

    def of(self, count: int, width: int, interpreted: bool) -> Cut:
        """The cut of ``count`` rows of ``width`` columns."""
        largest = _HOST_BLOCK if interpreted else _GPU_BLOCK
        block = self.block or min(largest, triton.next_power_of_2(width))
        tall = max(1, _HOST_ELEMENTS // block) if interpreted else 1
        rows = self.rows or min(tall, triton.next_power_of_2(max(1, count)))
        digit = _HOST_DIGIT if interpreted else _GPU_DIGIT
        return Cut(count, width, rows, block, self.digit or digit)


@dataclass(frozen=True, slots=True)
class Cut:
    """N rows of V columns in tiles. ``blocks`` of a row, ``spread``: the power of two above."""

    count: int
    width: int
    rows: int
    block: int
    digit: int

    @property
    def blocks(self) -> int:
        """Blocks a row."""
        return -(-self.width // self.block)

    @property
    def spread(self) -> int:
        """Width of a tile that holds one number a block."""
        return int(triton.next_power_of_2(self.blocks))

    @property
    def by_row(self) -> tuple[int]:
        """A grid with one program a tile of rows."""
        return (-(-self.count // self.rows),)

    @property
    def by_block(self) -> tuple[int, int]:
        """A grid with one program a tile."""
        return (-(-self.count // self.rows), self.blocks)

    def partial(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """One number for each block of each row, uninitialised (N, blocks)."""
        return torch.empty((self.count, self.blocks), dtype=dtype, device=like.device)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel without contraction of multiplies and adds (rule of spec/arithmetic.md)."""
    kernel[grid](*arguments, **constants, enable_fp_fusion=False)


@triton.jit
def tile(N, V, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows, columns and mask of this program's tile, and the place of its block."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < N)[:, None] & (col < V)[None, :]
    return row, col, mask


@triton.jit
def spread_of(pointer, row, N, NB, ROWS: tl.constexpr, NBP: tl.constexpr, other):
    """One number a block of each row: (ROWS, NBP), ``other`` outside."""
    block = tl.arange(0, NBP)
    mask = (row < N)[:, None] & (block < NB)[None, :]
    return tl.load(pointer + row[:, None] * NB + block[None, :], mask=mask, other=other)


@triton.jit
def earlier_of(values, NBP: tl.constexpr):
    """Sum over the blocks before this program's, one number a row."""
    before = tl.arange(0, NBP)[None, :] < tl.program_id(1)
    return tl.sum(tl.where(before, values, 0), axis=1)


@triton.jit
def exp64(d):
    """A4 for a binary64 tile, -700 <= d <= 0."""
    k = tl.floor(d * _LOG2E + 0.5)
    r = (d - k * _LN2_HI) - k * _LN2_LO
    s = r * _C11 + _C10
    s = s * r + _C9
    s = s * r + _C8
    s = s * r + _C7
    s = s * r + _C6
    s = s * r + _C5
    s = s * r + _C4
    s = s * r + _C3
    s = s * r + _C2
    s = s * r + _C1
    s = s * r + _C0
    power = ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    return s * power


@triton.jit
def widened(z):
    """Logits as binary32; bfloat16 by its pattern: exact below 2^-126 too."""
    if z.dtype == tl.bfloat16:
        z = (z.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return z


@triton.jit
def key_of(z):
    """The pattern of binary32 logits as an integer in the order of the numbers."""
    bits = z.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def extremes_kernel(logits, tops, lows, N, V, NB, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Largest and least key of each block of logits."""
    row, col, mask = tile(N, V, ROWS, BLOCK)
    z = tl.load(logits + row[:, None] * V + col[None, :], mask=mask, other=float("-inf"))
    key = key_of(widened(z))
    at = row * NB + tl.program_id(1)
    tl.store(tops + at, tl.max(key, axis=1), mask=row < N)
    tl.store(lows + at, tl.min(key, axis=1), mask=row < N)


@triton.jit
def row_state(tops, lows, row, N, NB, ROWS: tl.constexpr, NBP: tl.constexpr):
    """Largest logit of each row in binary64, 0 where it is refused, and the status (A1)."""
    top = tl.max(spread_of(tops, row, N, NB, ROWS, NBP, _KEY_MINUS_INFINITY), axis=1)
    low = tl.min(spread_of(lows, row, N, NB, ROWS, NBP, 0x7FFFFFFF), axis=1)
    status = tl.where(top == _KEY_MINUS_INFINITY, _ZERO_MASS, 0)
    bad = (top >= _KEY_INFINITY) | (low < _KEY_MINUS_INFINITY)
    status = tl.where(bad, _NON_FINITE, status)
    pattern = top ^ ((top >> 31) & 0x7FFFFFFF)
    largest = tl.where(status == 0, pattern, 0).to(tl.float32, bitcast=True)
    return largest.to(tl.float64), status


def extremes(logits: torch.Tensor, cut: Cut) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest and least key of each block, int32 (N, blocks)."""
    tops, lows = cut.partial(logits, torch.int32), cut.partial(logits, torch.int32)
    launch(
        extremes_kernel,
        cut.by_block,
        logits,
        tops,
        lows,
        cut.count,
        cut.width,
        cut.blocks,
        ROWS=cut.rows,
        BLOCK=cut.block,
    )
    return tops, lows
