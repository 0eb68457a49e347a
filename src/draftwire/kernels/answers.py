"""A whole sparse answer to a STEP, REPLY and COMPLETE, in one compiled call each way.

Both ways are all or nothing: what is not right to the last bit is left to the way field by field
and row by row (``wire.codec``, :mod:`draftwire.kernels.payload`), which alone says what is wrong.
Words are int32, as hosts and the wire are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.kernels.compiled import compiled
from draftwire.kernels.cpu_quantise import first_above
from draftwire.kernels.packed import ROW_HEAD_WORDS, checksum_of, gather, read_rows, write_rows
from draftwire.kernels.rows import QRow
from draftwire.wire.answer import HEAD_BYTES, Outline
from draftwire.wire.registry import HEADER_BYTES, MessageType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER: Final = HEADER_BYTES // 4
_REPLY: Final = _HEADER + HEAD_BYTES[MessageType.REPLY] // 4  # words of the outline: REPLY's
_COMPLETE: Final = _HEADER + HEAD_BYTES[MessageType.COMPLETE] // 4  # and COMPLETE's
ANSWER_WORDS: Final = _REPLY + _COMPLETE + 3
"""Words of an answer beside its rows: the checksum of REPLY's payload is there twice, and
COMPLETE's is behind it."""


def outline_words(outline: Outline) -> NDArray[np.int32]:
    """Return the words of an outline, read-only."""
    return np.frombuffer(outline.reply + outline.complete, np.int32)


def prepare(row: QRow, token: int, support: int) -> None:
    """Compile what is here, or load it from its cache. row: sparse, and gives ``token`` tickets."""
    words = ANSWER_WORDS + ROW_HEAD_WORDS + 2 * support
    frames = Outline(bytes(4 * _REPLY), bytes(4 * _COMPLETE), 0, 4 * words)
    written = write_answer([row], [token], 1, support, frames)
    assert written is not None
    store = np.frombuffer(bytearray(written), np.int32)
    heads, ids = np.empty((2, 1), np.int32), np.empty((1, support), np.int32)
    counts = np.empty_like(ids)
    read = read_answer(store, 0, outline_words(frames), 1, row.vocab_size, heads, ids, counts)
    assert read
    misdrawn(heads, ids, counts, np.zeros(1, np.int64))


def write_answer(
    rows: Sequence[QRow],
    tokens: Sequence[int],
    first_position: int,
    support: int,
    outline: Outline,
) -> memoryview | None:
    """Return both frames in new memory; None where a row is dense, too wide or no distribution.

    outline: of an answer of so many rows with ``support`` entries.
    """
    gathered = gather(rows, tokens, first_position, support)
    if gathered is None:
        return None
    out = np.empty(outline.bytes // 4, np.int32)
    words = outline_words(outline)
    written = _write(*gathered, first_position, rows[0].vocab_size, support, words, out)
    return out.data.cast("B") if written else None


@compiled
def _write(
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    heads: NDArray[np.int32],
    first_position: int,
    vocab_size: int,
    support: int,
    outline: NDArray[np.int32],
    out: NDArray[np.int32],
) -> bool:
    """Both frames; ids, counts: of all rows, one after the other; heads (2, rows)."""
    depth, width = heads.shape[1], ROW_HEAD_WORDS + 2 * support
    end = _REPLY + depth * width
    out[:_REPLY] = outline[:_REPLY]
    body = out[_REPLY:end]
    rows = body.reshape(depth, width)
    values = body.view(np.float32).reshape(depth, width)
    if not write_rows(ids, counts, heads, first_position, vocab_size, rows, values):
        return False
    checksum = np.int32(np.uint32(checksum_of(out[_HEADER:end])))
    out[end] = checksum
    last = end + 1
    after = last + _COMPLETE
    out[last:after] = outline[_REPLY:]
    out[after] = checksum
    out[after + 1] = np.int32(np.uint32(checksum_of(out[last + _HEADER : after + 1])))
    return True


@compiled
def read_answer(
    words: NDArray[np.int32],
    at: int,
    outline: NDArray[np.int32],
    first_position: int,
    vocab_size: int,
    heads: NDArray[np.int32],
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> bool:
    """Whether both frames begin at word ``at``, right in every bit; and all that is in them.

    ids, counts: (rows, support); heads (2, rows): entries and token of each row. What is written
    there means nothing unless the answer is True.
    """
    depth, support = ids.shape
    width = ROW_HEAD_WORDS + 2 * support
    body = at + _REPLY
    end = body + depth * width
    last = end + 1
    after = last + _COMPLETE
    if after + 2 > len(words):
        return False
    for index in range(_REPLY):
        if words[at + index] != outline[index]:
            return False
    for index in range(_COMPLETE):
        if words[last + index] != outline[_REPLY + index]:
            return False
    checksum = np.int32(np.uint32(checksum_of(words[at + _HEADER : end])))
    if words[end] != checksum or words[after] != checksum:
        return False
    if words[after + 1] != np.int32(np.uint32(checksum_of(words[last + _HEADER : after + 1]))):
        return False
    rows = words[body:end].reshape(depth, width)
    values = words[body:end].view(np.float32).reshape(depth, width)
    if not read_rows(rows, values, first_position, vocab_size, ids, counts):
        return False
    heads[0], heads[1] = rows[:, 2], rows[:, 1]
    return True


@compiled
def misdrawn(
    heads: NDArray[np.int32],
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    words: NDArray[np.int64],
) -> int:
    """The first row whose token is not the one that its word draws (A22), -1 if there is none.

    words: of 24 bits, one a row. Every row is read to its end, whatever was drawn.
    """
    wrong = -1
    for row in range(len(words) - 1, -1, -1):
        at = first_above(counts[row, : heads[0, row]], words[row])
        if at < 0 or ids[row, at] != heads[1, row]:
            wrong = row
    return wrong
