"""Whole replies in one call; that they decode as row by row is asserted in ``test_payload``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftwire.exact.counts import TOTAL, Counts
from draftwire.kernels.rows import QRow, SparseRows
from draftwire.rows.answers import write_answer
from draftwire.rows.packed import checksum_of
from draftwire.wire.answer import laid_out
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import CommitRider, ProposalPolicy, Step
from draftwire.wire.registry import Layout, Outcome

V = 11
STEP = Step(
    session=1,
    slot=0,
    generation=1,
    round=1,
    anchor=0,
    policy=ProposalPolicy(Layout.SPARSE, 1, 1.0, support=1),
    commit=CommitRider(0, 0, Outcome.NONE),
    context_version=0,
    proposal_key=0,
    prefix_digest=bytes(16),
    base=0,
    tokens=(0,),
)
HALVES = QRow.of_counts(Counts(V, TOTAL, (2, 4), (TOTAL // 2, TOTAL // 2)), dense=False)
POINT = QRow.of_counts(Counts(V, TOTAL, (7,), (TOTAL,)), dense=False)


def test_the_checksum_of_words_is_that_of_their_bytes() -> None:
    source = np.random.default_rng(5)
    for count in range(130):
        words = source.integers(-(2**31), 2**31, count).astype(np.int32)
        assert checksum_of(words) == crc32c(words.tobytes())
    for bit in range(32):
        word = np.array([1 << bit], np.uint32).view(np.int32)
        assert checksum_of(word) == crc32c(word.tobytes())


def written(
    rows: list[QRow], tokens: list[int], first_position: int, support: int
) -> bytearray | None:
    policy = ProposalPolicy(Layout.SPARSE, max(len(rows), 1), 1.0, support=support)
    step = replace(STEP, policy=policy, anchor=first_position - 1)
    frames = laid_out(step, V, tokens)
    if frames is None or not write_answer(rows, first_position, support, frames):
        return None
    return frames


def test_rows_are_made_when_they_are_asked_for() -> None:
    rows = SparseRows.room(V, 3, 2)
    for row in (HALVES, POINT):
        rows.append(row)
    assert [row.exact() for row in rows] == [HALVES.exact(), POINT.exact()]
    assert [row.exact() for row in rows[1:]] == [POINT.exact()]
    assert rows[-1].exact() == POINT.exact()
    for outside in (2, -3):
        with pytest.raises(IndexError):
            rows[outside]
    rows.append(POINT)
    dense = QRow.of_counts(HALVES.exact(), dense=True)
    for other in (POINT, dense, QRow(V + 1, POINT.ids, POINT.counts)):
        with pytest.raises(ValueError, match="no room"):
            rows.append(other)
    with pytest.raises(ValueError, match="no room"):
        SparseRows.room(V, 1, 1).append(HALVES)


def test_what_is_not_right_in_every_row_is_left_to_the_way_row_by_row() -> None:
    assert written([HALVES, POINT], [4, 7], 9, 2) is not None
    dense = QRow.of_counts(HALVES.exact(), dense=True)
    wider = QRow(V + 1, POINT.ids, POINT.counts)
    short = QRow(V, POINT.ids, POINT.counts - np.int32(1))
    for rows, tokens, first, support in (
        ([], [], 9, 2),
        ([HALVES], [4, 7], 9, 2),
        ([HALVES, POINT], [4], 9, 2),
        ([HALVES, POINT], [4, 6], 9, 2),
        ([HALVES, POINT], [-1, 7], 9, 2),
        ([HALVES, POINT], [4, V], 9, 2),
        ([HALVES, POINT], [4, 7], 9, 1),
        ([HALVES, POINT], [4, 7], 2**31 - 2, 2),
        ([HALVES, dense], [4, 4], 9, 2),
        ([HALVES, wider], [4, 7], 9, 2),
        ([HALVES, short], [4, 7], 9, 2),
    ):
        assert written(rows, tokens, first, support) is None
