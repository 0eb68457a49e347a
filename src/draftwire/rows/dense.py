"""The dense layout: binary32 for each id of the shard, in order (P12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.jit import compiled
from draftwire.kernels.shards.shard import Shard
from draftwire.rows.values import NON_DYADIC_Q, OK, SCALE, UNIT, mass_code, value_code

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from draftwire.rows.values import Counts

_BLOCK: Final = 4096  # entries; what a block reads and writes fits the first cache
_NO_COUNT: Final = np.int32(-1 << 25)  # bits that no count up to 2^25 - 1 has


def entries(shard: Shard, support: int) -> tuple[int, int]:
    """Return the least and the most entries that a row has in use."""
    return shard.width, shard.width


def write(
    rows: Sequence[Counts],
    tokens: Sequence[int],
    shard: Shard,
    used: NDArray[np.int32],
    words: NDArray[np.int32],
) -> int:
    """Write the q of every row; see :class:`draftwire.rows.reply.RowLayout`."""
    used[:] = shard.width
    for (ids, counts), token, row in zip(rows, tokens, words, strict=True):
        columns = counts if ids is None else _columns(ids, counts, shard)
        if len(columns) != shard.width:
            raise ValueError(f"{len(columns)} counts for a shard of {shard.width} ids")
        at, whole = token - shard.begin, shard.size == 1
        code = write_row(columns, at, whole, row.view(np.float32))
        if code != OK:
            return code
    return OK


def read(
    words: NDArray[np.int32],
    used: NDArray[np.int32],
    tokens: NDArray[np.int32],
    shard: Shard,
    out: NDArray[np.int32] | None,
) -> tuple[int, NDArray[np.int32] | None, NDArray[np.int32]]:
    """Read the q of every row; see :class:`draftwire.rows.reply.RowLayout`."""
    counts = np.empty((len(words), shard.width), np.int32) if out is None else out
    if counts.shape != words.shape:
        raise ValueError(f"{words.shape} counts do not fit {counts.shape}")
    for row, token, own in zip(words, tokens.tolist(), counts, strict=True):
        at, whole = token - shard.begin, shard.size == 1
        code = read_row(row, row.view(np.float32), at, whole, own)
        if code != OK:
            return code, None, counts
    return OK, None, counts


def _columns(ids: NDArray[np.int32], counts: NDArray[np.int32], shard: Shard) -> NDArray[np.int32]:
    columns = np.zeros(shard.width, np.int32)
    columns[ids - shard.begin] = counts
    return columns


@compiled
def write_row(
    counts: NDArray[np.int32], token: int, whole: bool, values: NDArray[np.float32]
) -> int:
    """Write counts as binary32; 0, or why they are no q. token: an index, of any column or none."""
    wrong = False
    mass = 0
    for begin in range(0, len(counts), _BLOCK):
        end = min(begin + _BLOCK, len(counts))
        block = counts[begin:end]
        wrong |= _write_block(block, values[begin:end]) != 0
        mass += _sum(block)
    if wrong:
        return NON_DYADIC_Q
    return mass_code(mass, whole, 0 <= token < len(counts) and counts[token] > 0)


@compiled
def read_row(
    words: NDArray[np.int32],
    values: NDArray[np.float32],
    token: int,
    whole: bool,
    counts: NDArray[np.int32],
) -> int:
    """Counts of a row from its words, which ``values`` are too; 0, or the first code of P14.

    Block by block in cache. token: an index, of any column or none.
    """
    wrong = False
    mass = 0
    for begin in range(0, len(words), _BLOCK):
        end = min(begin + _BLOCK, len(words))
        block = counts[begin:end]
        wrong |= _read_block(words[begin:end], values[begin:end], block) != 0
        mass += _sum(block)
    if wrong:
        for index in range(len(words)):
            code = value_code(words[index])
            if code != OK:
                return code
    return mass_code(mass, whole, 0 <= token < len(counts) and counts[token] > 0)


@compiled
def _read_block(
    words: NDArray[np.int32], values: NDArray[np.float32], counts: NDArray[np.int32]
) -> int:
    """Counts of a block, and zero if and only if each of them is a count of 0..2 x 2^24.

    A count that is turned back must give the very bits that came: that finds NaN, infinities,
    negative numbers, -0.0, fractions and subnormal numbers in one comparison, and with nothing but
    32-bit lanes. The clamp keeps the conversion inside int32.
    """
    wrong = np.int32(0)
    for index in range(len(counts)):
        value = values[index]
        value = value if value < np.float32(2) else np.float32(2)
        value = value if value > np.float32(0) else np.float32(0)
        count = np.int32(value * SCALE)
        back = np.float32(np.float32(count) * UNIT)
        wrong = np.int32(wrong | (back.view(np.int32) ^ words[index]))
        counts[index] = count
    return int(wrong)


@compiled
def _write_block(counts: NDArray[np.int32], values: NDArray[np.float32]) -> int:
    """Write counts as binary32; zero if and only if each is in 0..2^25 - 1."""
    wrong = np.int32(0)
    for index in range(len(counts)):
        count = counts[index]
        wrong = np.int32(wrong | (count & _NO_COUNT))
        values[index] = np.float32(np.float32(count) * UNIT)
    return int(wrong)


@compiled
def _sum(counts: NDArray[np.int32]) -> int:
    """Sum in 64 bits: at most 2^24 entries of at most 2^25."""
    mass = np.int64(0)
    for index in range(len(counts)):
        mass += counts[index]
    return int(mass)
