"""Sparse rows of a reply by compiled loops: what :mod:`kernels.payload` does step by step.

They answer None or False for anything that is not right, and leave it to the way row by row to say
what is wrong: there is one place that decides codes and their order (P14). Hosts are little-endian,
as the wire is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.jit import compiled
from draftwire.kernels.rows import LINE_HEAD, QRow, SparseRows
from draftwire.rows.loops import OK, sparse_row, write_sparse
from draftwire.wire.rows import ROW_HEAD_BYTES, PackedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW_HEAD_WORDS: Final = ROW_HEAD_BYTES // 4  # words: position, token, entries, checksum


def _crc_tables() -> NDArray[np.uint32]:
    """Tables of four steps at once (Intel's slicing) of CRC32C, 0x1EDC6F41 reflected."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ (table & np.uint32(1)) * np.uint32(0x82F63B78)
    tables = [table]
    for _ in range(3):
        tables.append(tables[-1] >> np.uint32(8) ^ table[tables[-1] & np.uint32(0xFF)])
    return np.stack(tables)


_CRC: Final = _crc_tables()


def read_packed(
    packed: PackedRows, first_position: int, vocab_size: int
) -> tuple[QRow, ...] | None:
    """Return the q of every sparse row, or None if any check of P14 fails in any row."""
    depth, support = len(packed), packed.q_bytes // 8
    words = np.frombuffer(packed.body, np.int32).reshape(depth, ROW_HEAD_WORDS + 2 * support)
    rows = SparseRows.room(vocab_size, depth, support)
    if not read_rows(words, words.view(np.float32), first_position, vocab_size, rows.block):
        return None
    rows.length = depth
    return tuple(rows)


@compiled
def checksum_of(words: NDArray[np.int32]) -> int:
    """CRC32C of words, as a u32."""
    remainder = np.uint32(0xFFFFFFFF)
    for index in range(len(words)):
        remainder ^= np.uint32(words[index])
        remainder = np.uint32(
            _CRC[3, remainder & np.uint32(0xFF)]
            ^ _CRC[2, remainder >> np.uint32(8) & np.uint32(0xFF)]
            ^ _CRC[1, remainder >> np.uint32(16) & np.uint32(0xFF)]
            ^ _CRC[0, remainder >> np.uint32(24)]
        )
    return int(remainder ^ np.uint32(0xFFFFFFFF))


@compiled
def read_rows(
    words: NDArray[np.int32],
    values: NDArray[np.float32],
    first_position: int,
    vocab_size: int,
    lines: NDArray[np.int32],
) -> bool:
    """All rows into lines of :class:`~draftwire.kernels.rows.SparseRows`; False if one is wrong.

    words, values: (rows, 4 + 2 * support), the same memory.
    """
    support = lines.shape[1] - LINE_HEAD >> 1
    for row in range(words.shape[0]):
        token, used = words[row, 1], words[row, 2]
        if np.uint32(words[row, 0]) != first_position + row:
            return False
        if not (0 <= token < vocab_size and 1 <= used <= support):
            return False
        q = words[row, ROW_HEAD_WORDS:]
        if np.uint32(words[row, 3]) != checksum_of(q):
            return False
        weights = values[row, ROW_HEAD_WORDS + support :]
        ids = lines[row, LINE_HEAD : LINE_HEAD + support]
        counts = lines[row, LINE_HEAD + support :]
        pairs = q.reshape(2, support)
        if sparse_row(pairs, weights, used, token, vocab_size, ids, counts) != OK:
            return False
        lines[row, 0], lines[row, 1] = used, token
    return True


@compiled
def write_row(
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    token: int,
    position: int,
    vocab_size: int,
    support: int,
    out: NDArray[np.int32],
    values: NDArray[np.float32],
    at: int,
) -> bool:
    """Write one row at word ``at`` of ``out``, which ``values`` are too; False if it is none."""
    used = len(ids)
    begin, end = at + ROW_HEAD_WORDS, at + ROW_HEAD_WORDS + 2 * support
    if used > support:
        return False
    if write_sparse(ids, counts, token, vocab_size, out[begin:end], values[begin:end]) != OK:
        return False
    out[at], out[at + 1], out[at + 2] = position, token, used
    out[at + 3] = np.int32(np.uint32(checksum_of(out[begin:end])))
    return True
