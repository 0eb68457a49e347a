"""A whole sparse answer to a STEP, REPLY and COMPLETE: written row by row, read in one call.

Both ways are all or nothing: what is not right to the last bit is left to the way field by field
and row by row (``wire.codec``, :mod:`draftwire.rows.payload`), which alone says what is wrong.
Words are int32, as hosts and the wire are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.cpu.quantise_loops import sample_inverse_cdf
from draftwire.kernels.jit import compiled
from draftwire.kernels.rows import LINE_HEAD, QRow, SparseRows
from draftwire.rows.packed import ROW_HEAD_WORDS, checksum_of, read_packed, read_rows, write_row
from draftwire.wire.answer import HEAD_BYTES, laid_out
from draftwire.wire.messages import CommitRider, ProposalPolicy, Step
from draftwire.wire.registry import HEADER_BYTES, Layout, MessageType, Outcome
from draftwire.wire.rows import PackedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_INT32: Final = (1 << 31) - 1
_HEADER: Final = HEADER_BYTES // 4
REPLY_WORDS: Final = _HEADER + HEAD_BYTES[MessageType.REPLY] // 4
"""Words of REPLY before its rows."""
COMPLETE_WORDS: Final = _HEADER + HEAD_BYTES[MessageType.COMPLETE] // 4
"""Words of COMPLETE before the checksum of the reply."""
ANSWER_WORDS: Final = REPLY_WORDS + COMPLETE_WORDS + 3
"""Words of an answer beside its rows: the checksum of REPLY's payload is there twice, and
COMPLETE's is behind it."""


def write_answer(
    rows: Sequence[QRow], first_position: int, support: int, frames: bytearray
) -> bool:
    """Write what is not known of both frames; False where a row is dense, too wide or wrong.

    frames: laid out for so many rows of ``support`` entries, with their tokens; they mean nothing
    where this is False.
    """
    depth = len(rows)
    if not depth or len(frames) != 4 * (ANSWER_WORDS + depth * (ROW_HEAD_WORDS + 2 * support)):
        return False
    if not isinstance(rows, SparseRows) or rows.block.shape != (depth, LINE_HEAD + 2 * support):
        gathered = _gathered(rows, support)
        if gathered is None:
            return False
        rows = gathered
    return _write(rows.block, first_position, rows.vocab_size, np.frombuffer(frames, np.int32))


def _gathered(rows: Sequence[QRow], support: int) -> SparseRows | None:
    """Return rows in one piece, None where one is dense, too wide or of another vocabulary."""
    gathered = SparseRows.room(rows[0].vocab_size, len(rows), support)
    try:
        for row in rows:
            gathered.append(row)
    except ValueError:
        return None
    return gathered


@compiled
def _write(
    lines: NDArray[np.int32], first_position: int, vocab_size: int, out: NDArray[np.int32]
) -> bool:
    """Write rows and checksums beside what is known; False if a row is no distribution.

    lines: of :class:`~draftwire.kernels.rows.SparseRows`, whose tokens are not looked at.
    """
    support = lines.shape[1] - LINE_HEAD >> 1
    values = out.view(np.float32)
    end = REPLY_WORDS
    for row in range(len(lines)):
        line, position, token = lines[row], first_position + row, out[end + 1]
        if not 0 <= token < vocab_size or position >= MAX_INT32:
            return False
        ids = line[LINE_HEAD : LINE_HEAD + line[0]]
        counts = line[LINE_HEAD + support : LINE_HEAD + support + line[0]]
        if not write_row(ids, counts, token, position, vocab_size, support, out, values, end):
            return False
        end += ROW_HEAD_WORDS + 2 * support
    checksum = np.int32(np.uint32(checksum_of(out[_HEADER:end])))
    after = end + 1 + COMPLETE_WORDS
    out[end] = checksum
    out[after] = checksum
    out[after + 1] = np.int32(np.uint32(checksum_of(out[end + 1 + _HEADER : after + 1])))
    return True


@compiled
def read_answer(
    words: NDArray[np.int32],
    at: int,
    first_position: int,
    vocab_size: int,
    lines: NDArray[np.int32],
) -> bool:
    """Whether the answer at word ``at`` is right, its outline aside; and what is in it.

    lines: of :class:`~draftwire.kernels.rows.SparseRows`. What is written there means nothing
    unless the answer is True.
    """
    depth, width = len(lines), ROW_HEAD_WORDS - LINE_HEAD + lines.shape[1]
    body = at + REPLY_WORDS
    end = body + depth * width
    last = end + 1
    after = last + COMPLETE_WORDS
    if after + 2 > len(words):
        return False
    checksum = np.int32(np.uint32(checksum_of(words[at + _HEADER : end])))
    if words[end] != checksum or words[after] != checksum:
        return False
    if words[after + 1] != np.int32(np.uint32(checksum_of(words[last + _HEADER : after + 1]))):
        return False
    rows = words[body:end].reshape(depth, width)
    values = words[body:end].view(np.float32).reshape(depth, width)
    return read_rows(rows, values, first_position, vocab_size, lines)


@compiled
def first_audit_failure(lines: NDArray[np.int32], words: NDArray[np.int64]) -> int:
    """The first row whose token is not the one that its word draws (A22), -1 if there is none.

    lines: of :class:`~draftwire.kernels.rows.SparseRows`; words: of 24 bits, one a row. Every row
    is read to its end, whatever was drawn.
    """
    support = lines.shape[1] - LINE_HEAD >> 1
    wrong = -1
    for row in range(len(words) - 1, -1, -1):
        line = lines[row]
        begin = LINE_HEAD + support
        at = sample_inverse_cdf(line[begin : begin + line[0]], words[row])
        if at < 0 or line[LINE_HEAD + at] != line[1]:
            wrong = row
    return wrong


def prepare(row: QRow, token: int, support: int) -> None:
    """Compile what is here, or load it from its cache. row: sparse, and gives ``token`` tickets."""
    policy = ProposalPolicy(Layout.SPARSE, 1, 1.0, support=support)
    step = Step(1, 0, 1, 1, 0, policy, CommitRider(0, 0, Outcome.NONE), 0, 0, bytes(16), 0, (0,))
    frames = laid_out(step, row.vocab_size, (token,))
    assert frames is not None
    written = write_answer([row], 1, support, frames)
    assert written
    store = np.frombuffer(frames, np.int32)
    lines = np.empty((1, LINE_HEAD + 2 * support), np.int32)
    read = read_answer(store, 0, 1, row.vocab_size, lines)
    assert read
    first_audit_failure(lines, np.zeros(1, np.int64))
    begin, end = 4 * REPLY_WORDS, 4 * (REPLY_WORDS + ROW_HEAD_WORDS + 2 * support)
    read_packed(PackedRows(bytes(frames[begin:end]), 8 * support), 1, row.vocab_size)
