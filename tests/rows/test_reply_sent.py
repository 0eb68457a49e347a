"""Rows that are no q are not sent, and those that are have the size that is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwire.errors import (
    ArithmeticRefusalError,
    RefusalCode,
)
from draftwire.exact import payload as plain
from draftwire.exact.counts import Counts
from draftwire.kernels.rows import QRow
from draftwire.rows.reply import decode_rows, encode_rows
from draftwire.wire.agreement import q_bytes
from draftwire.wire.registry import TOTAL, Layout
from tests.rows.test_reply import HALF, V, lying


def refuse_to_send(call: Callable[[], Any], code: RefusalCode) -> None:
    with pytest.raises(ArithmeticRefusalError) as caught:
        call()
    assert caught.value.code == code


def test_what_is_no_q_is_not_sent() -> None:
    ids, good = np.array([2, 4], np.int32), np.array([HALF, HALF], np.int32)
    rows = []
    for counts in ([HALF, HALF - 1], [HALF + 1, HALF], [TOTAL, 0], [TOTAL + 1, -1]):
        rows.append((QRow(V, ids, np.array(counts, np.int32)), Layout.SPARSE))
    for bad_ids in ([4, 2], [4, 4], [-1, 4], [4, V]):
        rows.append((QRow(V, np.array(bad_ids, np.int32), good), Layout.SPARSE))
    for changes in ({0: TOTAL - 1}, {0: TOTAL + 1, 1: -1}, {0: 2 * TOTAL, 1: -TOTAL}):
        wide = np.zeros(V, np.int32)
        for at, count in changes.items():
            wide[at] = count
        rows.append((QRow(V, None, wide), Layout.DENSE))
    sound = QRow(V, ids, good)
    for row, layout in rows:
        for several, tokens in (([row], [4]), ([sound, row, sound], [4, 4, 4])):
            refuse_to_send(
                lambda several=several, tokens=tokens, layout=layout: encode_rows(
                    several, tokens, 9, layout, 3
                ),
                RefusalCode.INCONSISTENT_ALLOCATION,
            )


def test_a_token_without_a_count_and_a_support_too_large_are_not_sent() -> None:
    counts = Counts(V, TOTAL, (2, 4), (HALF, HALF))
    row = QRow.of_counts(counts, dense=False)
    for token in (3, -1, V):
        for encode, value in ((encode_rows, row), (plain.encode_reply_rows, counts)):
            for layout in Layout:
                refuse_to_send(
                    lambda encode=encode, value=value, token=token, layout=layout: encode(
                        [value], [token], 9, layout, 3
                    ),
                    RefusalCode.ZERO_Q,
                )
    refuse_to_send(lambda: encode_rows([row], [4], 9, Layout.SPARSE, 1), RefusalCode.OUT_OF_RANGE)
    refuse_to_send(lambda: plain.encode_q(counts, Layout.SPARSE, 1), RefusalCode.OUT_OF_RANGE)
    other = Counts(V, 16, (2,), (16,))
    refuse_to_send(lambda: plain.encode_q(other, Layout.SPARSE, 1), RefusalCode.OUT_OF_RANGE)


@pytest.mark.parametrize(("tokens", "first_position"), [([4, 4], 9), ([], 9), ([4], 2**32)])
def test_a_token_for_each_row_and_a_position_that_is_a_u32(
    tokens: list[int], first_position: int
) -> None:
    row = QRow.of_counts(Counts(V, TOTAL, (4,), (TOTAL,)), dense=False)
    with pytest.raises(ValueError):
        encode_rows([row], tokens, first_position, Layout.SPARSE, 1)


def test_rows_of_one_reply_are_over_one_vocabulary_and_fit_their_slot() -> None:
    point = Counts(V, TOTAL, (4,), (TOTAL,))
    for is_dense in (False, True):
        rows = [
            QRow.of_counts(each, dense=is_dense)
            for each in (point, replace(point, vocab_size=V + 1))
        ]
        for layout in (Layout.DENSE, Layout.SPARSE):
            with pytest.raises(ValueError, match="one vocabulary"):
                encode_rows(rows, [4, 4], 9, layout, 1)
    for shape in ((2, V - 1), (2, V + 1), (1, V), (3, V)):
        with pytest.raises(ValueError, match="do not fit"):
            decode_rows(lying(Layout.DENSE), V, np.empty(shape, np.int32))


def test_the_last_position_is_sent() -> None:
    row = QRow.of_counts(Counts(V, TOTAL, (4,), (TOTAL,)), dense=False)
    (sent,) = encode_rows([row], [4], 2**32 - 1, Layout.SPARSE, 1)
    assert sent.position == 2**32 - 1


def test_rows_take_the_bytes_that_their_layout_says() -> None:
    row = QRow.of_counts(Counts(V, TOTAL, (4,), (TOTAL,)), dense=False)
    for layout, width in ((Layout.DENSE, V), (Layout.SPARSE, 3), (Layout.IDS_ONLY, 0)):
        rows = encode_rows([row] * 2, [4, 4], 9, layout, width)
        assert rows.q_bytes == q_bytes(layout, width)
        assert len(rows.body) == 2 * (16 + rows.q_bytes)
