"""A whole sparse reply in one compiled call each way: what :mod:`kernels.payload` does row by row.

Both answer None for anything that is not right in every row, and leave it to the way row by row to
say what is wrong: there is one place that decides codes and their order (P14). Hosts are
little-endian, as the wire is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.compiled import compiled
from draftwire.kernels.payload_loops import OK, sparse_row, write_sparse
from draftwire.kernels.rows import QRow
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


def read_packed(rows: PackedRows, first_position: int, vocab_size: int) -> tuple[QRow, ...] | None:
    """Return the q of every sparse row, or None if any check of P14 fails in any row."""
    depth, support = len(rows), rows.q_bytes // 8
    words = np.frombuffer(rows.body, np.int32).reshape(depth, ROW_HEAD_WORDS + 2 * support)
    ids, counts = np.empty((2, depth, support), np.int32)
    if not read_rows(words, words.view(np.float32), first_position, vocab_size, ids, counts):
        return None
    used = words[:, 2].tolist()
    if min(used, default=support) == support:  # nearly always: no row has pads
        return tuple([QRow(vocab_size, *row) for row in zip(ids, counts, strict=True)])
    return tuple([QRow(vocab_size, ids[i, :n], counts[i, :n]) for i, n in enumerate(used)])


def write_packed(
    rows: Sequence[QRow], tokens: Sequence[int], first_position: int, support: int
) -> PackedRows | None:
    """Return sparse rows as they are sent; None where one is dense, too wide or no distribution."""
    gathered = gather(rows, tokens, first_position, support)
    if gathered is None:
        return None
    words = np.empty((len(rows), ROW_HEAD_WORDS + 2 * support), np.int32)
    right = write_rows(*gathered, first_position, rows[0].vocab_size, words, words.view(np.float32))
    return PackedRows(words.tobytes(), 8 * support) if right else None


def gather(
    rows: Sequence[QRow], tokens: Sequence[int], first_position: int, support: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]] | None:
    """Return ids and counts of all rows one after the other, and each row's entries and token.

    None where the rows are not sparse, do not fit ``support`` or are not over one vocabulary.
    """
    depth = len(rows)
    if not 0 < depth == len(tokens):
        return None
    vocab_size = rows[0].vocab_size
    ids, counts, entries = [], [], []
    for row in rows:
        if row.ids is None or row.vocab_size != vocab_size:
            return None
        ids.append(row.ids)
        counts.append(row.counts)
        entries.append(len(row.ids))
    if max(entries) > support:
        return None
    if not (first_position + depth) >> 31 == 0 <= min(tokens) <= max(tokens) < vocab_size:
        return None
    heads = np.array([entries, tokens], np.int32)
    return np.concatenate(ids), np.concatenate(counts), heads


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
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> bool:
    """Ids and counts of all rows; words, values: (rows, 4 + 2 * support), the same memory."""
    support = ids.shape[1]
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
        pairs = q.reshape(2, support)
        if sparse_row(pairs, weights, used, token, vocab_size, ids[row], counts[row]) != OK:
            return False
    return True


@compiled
def write_rows(
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    heads: NDArray[np.int32],
    first_position: int,
    vocab_size: int,
    words: NDArray[np.int32],
    values: NDArray[np.float32],
) -> bool:
    """Write rows whose ids and counts lie one after the other.

    heads (2, rows): entries and token of each. words, values: as in ``read_rows``.
    """
    begin = 0
    for row in range(words.shape[0]):
        used, token = heads[0, row], heads[1, row]
        end = begin + used
        q = words[row, ROW_HEAD_WORDS:]
        chosen, tickets = ids[begin:end], counts[begin:end]
        if write_sparse(chosen, tickets, token, vocab_size, q, values[row, ROW_HEAD_WORDS:]) != OK:
            return False
        words[row, 0], words[row, 1], words[row, 2] = first_position + row, token, used
        words[row, 3] = np.int32(np.uint32(checksum_of(q)))
        begin = end
    return True
