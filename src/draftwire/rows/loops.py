"""The compiled loops of :mod:`draftwire.rows.payload`; each returns 0 or why it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ProtocolErrorCode
from draftwire.kernels.jit import compiled
from draftwire.wire.registry import PAD_ID, TOTAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Plain integers, because compiled loops know no enumerations.
OK: Final = 0
_DUPLICATE_ID: Final = int(ProtocolErrorCode.DUPLICATE_ID)
_UNSORTED_SUPPORT: Final = int(ProtocolErrorCode.UNSORTED_SUPPORT)
_ID_OUT_OF_RANGE: Final = int(ProtocolErrorCode.ID_OUT_OF_RANGE)
_NON_FINITE_Q: Final = int(ProtocolErrorCode.NON_FINITE_Q)
_NEGATIVE_Q: Final = int(ProtocolErrorCode.NEGATIVE_Q)
_NEGATIVE_ZERO_Q: Final = int(ProtocolErrorCode.NEGATIVE_ZERO_Q)
_NON_DYADIC_Q: Final = int(ProtocolErrorCode.NON_DYADIC_Q)
_WRONG_MASS: Final = int(ProtocolErrorCode.WRONG_MASS)
_ZERO_Q_AT_TOKEN: Final = int(ProtocolErrorCode.ZERO_Q_AT_TOKEN)
_ZERO_COUNT_ENTRY: Final = int(ProtocolErrorCode.ZERO_COUNT_ENTRY)
_NONZERO_PADDING: Final = int(ProtocolErrorCode.NONZERO_PADDING)
NOT_COUNTS: Final = -1
NO_TICKET: Final = -2

_ONE: Final = 0x3F800000  # the bits of binary32 1.0
_BLOCK: Final = 4096  # entries; what a block reads and writes fits the first cache
_NO_COUNT: Final = np.int32(-1 << 25)  # bits that no count up to 2^25 - 1 has
_INFINITY: Final = 0x7F800000
_SCALE: Final = np.float32(TOTAL)
_UNIT: Final = np.float32(1 / TOTAL)


@compiled
def _value_code(bits: int) -> int:
    """Why the binary32 number with these bits (as int32) is no number of tickets; 0 if it is.

    A number above 1 is one: the mass will be wrong, and is said to be.
    """
    if bits & _INFINITY == _INFINITY:
        return _NON_FINITE_Q
    if bits < 0:
        return _NEGATIVE_ZERO_Q if bits & 0x7FFFFFFF == 0 else _NEGATIVE_Q
    if bits == 0 or bits >= _ONE:
        return OK
    below_unit = 126 - (bits >> 23)  # significand bits that are less than a ticket
    if below_unit > 23 or bits & ((1 << below_unit) - 1):
        return _NON_DYADIC_Q
    return OK


@compiled
def _dense_block(
    words: NDArray[np.int32], values: NDArray[np.float32], counts: NDArray[np.int32]
) -> int:
    """Counts of a block, and zero if and only if each of them is a number of tickets of 0..2.

    A count that is turned back must give the very bits that came: that finds NaN, infinities,
    negative numbers, -0.0, fractions of a ticket and subnormal numbers in one comparison, and with
    nothing but 32-bit lanes. The clamp keeps the conversion inside int32.
    """
    wrong = np.int32(0)
    for index in range(len(counts)):
        value = values[index]
        value = value if value < np.float32(2) else np.float32(2)
        value = value if value > np.float32(0) else np.float32(0)
        count = np.int32(value * _SCALE)
        back = np.float32(np.float32(count) * _UNIT)
        wrong = np.int32(wrong | (back.view(np.int32) ^ words[index]))
        counts[index] = count
    return int(wrong)


@compiled
def _sum(counts: NDArray[np.int32]) -> int:
    """Sum in 64 bits: at most 2^24 entries of at most 2^25 tickets."""
    mass = np.int64(0)
    for index in range(len(counts)):
        mass += counts[index]
    return int(mass)


@compiled
def dense_counts(
    words: NDArray[np.int32], values: NDArray[np.float32], token: int, counts: NDArray[np.int32]
) -> int:
    """Counts of a dense row from its words, which ``values`` are too; block by block in cache."""
    wrong = False
    mass = 0
    for begin in range(0, len(words), _BLOCK):
        end = min(begin + _BLOCK, len(words))
        block = counts[begin:end]
        wrong |= _dense_block(words[begin:end], values[begin:end], block) != 0
        mass += _sum(block)
    if wrong:
        for index in range(len(words)):
            code = _value_code(words[index])
            if code != OK:
                return code
    if wrong or mass != TOTAL:
        return _WRONG_MASS
    return OK if counts[token] > 0 else _ZERO_Q_AT_TOKEN


@compiled
def sparse_counts(
    words: NDArray[np.int32],
    values: NDArray[np.float32],
    heads: NDArray[np.int32],
    vocab_size: int,
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> int:
    """Ids and counts of all rows; words and values (rows, 2, support), heads (2, rows)."""
    for row in range(words.shape[0]):
        used, token = heads[0, row], heads[1, row]
        code = sparse_row(
            words[row], values[row, 1], used, token, vocab_size, ids[row], counts[row]
        )
        if code != OK:
            return code
    return OK


@compiled
def sparse_row(
    words: NDArray[np.int32],
    values: NDArray[np.float32],
    used: int,
    token: int,
    vocab_size: int,
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> int:
    """Ids and counts of one row; words (2, support): ids, then the binary32 of ``values``."""
    before = -1
    for entry in range(used):
        token_id = words[0, entry]
        if token_id < 0 or token_id >= vocab_size:
            return _ID_OUT_OF_RANGE
        if token_id <= before:
            return _DUPLICATE_ID if token_id == before else _UNSORTED_SUPPORT
        before = token_id
        ids[entry] = token_id
    mass = np.int64(0)
    at_token = False
    for entry in range(used):
        bits = words[1, entry]
        code = _value_code(bits)
        if code != OK:
            return code
        if bits == 0:
            return _ZERO_COUNT_ENTRY
        # more than all tickets stays more than all tickets, inside int32
        count = np.int32(values[entry] * _SCALE) if bits <= _ONE else np.int32(TOTAL + 1)
        counts[entry] = count
        mass += count
        at_token |= ids[entry] == token
    for entry in range(used, words.shape[1]):
        if words[0, entry] != PAD_ID or words[1, entry] != 0:
            return _NONZERO_PADDING
    if mass != TOTAL:
        return _WRONG_MASS
    return OK if at_token else _ZERO_Q_AT_TOKEN


@compiled
def _write_block(counts: NDArray[np.int32], values: NDArray[np.float32]) -> int:
    """Write counts as binary32; zero if and only if each is in 0..2^25 - 1."""
    wrong = np.int32(0)
    for index in range(len(counts)):
        count = counts[index]
        wrong = np.int32(wrong | (count & _NO_COUNT))
        values[index] = np.float32(np.float32(count) * _UNIT)
    return int(wrong)


@compiled
def write_dense(counts: NDArray[np.int32], token: int, values: NDArray[np.float32]) -> int:
    """Write counts as binary32; NOT_COUNTS, or NO_TICKET for a token (-1 = none is meant)."""
    wrong = False
    mass = 0
    for begin in range(0, len(counts), _BLOCK):
        end = min(begin + _BLOCK, len(counts))
        block = counts[begin:end]
        wrong |= _write_block(block, values[begin:end]) != 0
        mass += _sum(block)
    if wrong or mass != TOTAL:
        return NOT_COUNTS
    return OK if token < 0 or counts[token] > 0 else NO_TICKET


@compiled
def write_sparse(
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    token: int,
    vocab_size: int,
    words: NDArray[np.int32],
    values: NDArray[np.float32],
) -> int:
    """Write ids, counts and pads; ``words`` are ``values`` too. NOT_COUNTS as in write_dense."""
    support = len(words) // 2
    mass = np.int64(0)
    before = -1
    at_token = token < 0
    for entry in range(len(ids)):
        token_id, count = ids[entry], counts[entry]
        if token_id <= before or token_id >= vocab_size or count < 1 or count > TOTAL:
            return NOT_COUNTS
        before = token_id
        at_token |= token_id == token
        words[entry] = token_id
        values[support + entry] = np.float32(count) * _UNIT
        mass += count
    for entry in range(len(ids), support):
        words[entry] = PAD_ID
        words[support + entry] = 0
    if mass != TOTAL:
        return NOT_COUNTS
    return OK if at_token else NO_TICKET
