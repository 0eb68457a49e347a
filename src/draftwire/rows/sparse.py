"""The sparse layout: K ids in use or pads, then their K binary32 numbers (P12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ArithmeticRefusalError, ProtocolErrorCode, RefusalCode
from draftwire.kernels.jit import compiled
from draftwire.kernels.shards.shard import Shard
from draftwire.rows.values import NON_DYADIC_Q, OK, ONE, SCALE, UNIT, mass_code, value_code
from draftwire.wire.registry import PAD_ID, TOTAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from draftwire.rows.values import Counts

_DUPLICATE_ID: Final = int(ProtocolErrorCode.DUPLICATE_ID)
_UNSORTED_SUPPORT: Final = int(ProtocolErrorCode.UNSORTED_SUPPORT)
_ID_OUT_OF_RANGE: Final = int(ProtocolErrorCode.ID_OUT_OF_RANGE)
_ZERO_COUNT_ENTRY: Final = int(ProtocolErrorCode.ZERO_COUNT_ENTRY)
_NONZERO_PADDING: Final = int(ProtocolErrorCode.NONZERO_PADDING)


def entries(shard: Shard, support: int) -> tuple[int, int]:
    """Return the least and the most entries that a row has in use; a shard may have none."""
    return int(shard.size == 1), support


def write(
    rows: Sequence[Counts],
    tokens: Sequence[int],
    shard: Shard,
    used: NDArray[np.int32],
    words: NDArray[np.int32],
) -> int:
    """Write the q of every row; see :class:`draftwire.rows.reply.RowLayout`."""
    support = words.shape[1] // 2
    ids, counts = zip(*[_pair(*row, shard) for row in rows], strict=True)
    sizes = [len(each) for each in ids]
    if max(sizes) > support:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"a support of {max(sizes)} ids does not fit {support}"
        )
    used[:] = sizes
    return write_rows(
        np.concatenate(ids),
        np.concatenate(counts),
        used,
        np.array(tokens, np.int32),
        (shard.begin, shard.end),
        shard.size == 1,
        words,
        words.view(np.float32),
    )


def read(
    words: NDArray[np.int32],
    used: NDArray[np.int32],
    tokens: NDArray[np.int32],
    shard: Shard,
    out: NDArray[np.int32] | None,
) -> tuple[int, NDArray[np.int32] | None, NDArray[np.int32]]:
    """Read the q of every row; see :class:`draftwire.rows.reply.RowLayout`. out: not used."""
    ids, counts = np.empty((2, len(words), words.shape[1] // 2), np.int32)
    values, where = words.view(np.float32), (shard.begin, shard.end)
    code = read_rows(words, values, used, tokens, where, shard.size == 1, ids, counts)
    return code, ids, counts


def _pair(
    ids: NDArray[np.int32] | None, counts: NDArray[np.int32], shard: Shard
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    if ids is not None:
        return ids, counts
    columns = np.flatnonzero(counts).astype(np.int32)
    return columns + np.int32(shard.begin), counts[columns]


@compiled
def write_rows(
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    used: NDArray[np.int32],
    tokens: NDArray[np.int32],
    shard: tuple[int, int],
    whole: bool,
    words: NDArray[np.int32],
    values: NDArray[np.float32],
) -> int:
    """Write ids, counts and pads of all rows; 0, or why one is no q.

    ids, counts: of all rows, one behind the other. words, which ``values`` are too: (K, 2 x
    support).
    """
    support = words.shape[1] // 2
    begin = 0
    for row in range(len(used)):
        mass = np.int64(0)
        before = shard[0] - 1
        held = False
        for entry in range(used[row]):
            token_id, count = ids[begin + entry], counts[begin + entry]
            if token_id <= before or token_id >= shard[1] or count < 1 or count > TOTAL:
                return NON_DYADIC_Q
            before = token_id
            held |= token_id == tokens[row]
            words[row, entry] = token_id
            values[row, support + entry] = np.float32(count) * UNIT
            mass += count
        for entry in range(used[row], support):
            words[row, entry] = PAD_ID
            words[row, support + entry] = 0
        begin += used[row]
        code = mass_code(int(mass), whole, held)
        if code != OK:
            return code
    return OK


@compiled
def read_rows(
    words: NDArray[np.int32],
    values: NDArray[np.float32],
    used: NDArray[np.int32],
    tokens: NDArray[np.int32],
    shard: tuple[int, int],
    whole: bool,
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> int:
    """Ids and counts of all rows, (K, support) each; 0, or the first code of P14.

    words, which ``values`` are too: (K, 2 x support). used: 0..support each.
    """
    support = ids.shape[1]
    for row in range(len(words)):
        before = np.int32(-1)
        for entry in range(used[row]):
            token_id = words[row, entry]
            if token_id < shard[0] or token_id >= shard[1]:
                return _ID_OUT_OF_RANGE
            if token_id <= before:
                return _DUPLICATE_ID if token_id == before else _UNSORTED_SUPPORT
            before = token_id
            ids[row, entry] = token_id
        mass = np.int64(0)
        held = False
        for entry in range(used[row]):
            bits = words[row, support + entry]
            code = value_code(bits)
            if code != OK:
                return code
            if bits == 0:
                return _ZERO_COUNT_ENTRY
            # more than 2^24 stays more than 2^24, inside int32
            value = values[row, support + entry]
            count = np.int32(value * SCALE) if bits <= ONE else np.int32(TOTAL + 1)
            counts[row, entry] = count
            mass += count
            held |= ids[row, entry] == tokens[row]
        for entry in range(used[row], support):
            if words[row, entry] != PAD_ID or words[row, support + entry] != 0:
                return _NONZERO_PADDING
        code = mass_code(int(mass), whole, held)
        if code != OK:
            return code
    return OK
