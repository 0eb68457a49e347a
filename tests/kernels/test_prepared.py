"""What the benchmarks draw in one call from prepared rows is what is drawn from one by one."""

from __future__ import annotations

import numpy as np

from benchmarks.prepared import draw_all
from draftwire.exact.counts import TOTAL
from draftwire.kernels import cpu
from draftwire.kernels.rows import QRow, SparseRows
from draftwire.kernels.words import first_words

V = 11


def test_rows_that_do_not_wait_are_drawn_from_as_one_by_one() -> None:
    source = np.random.default_rng(11)
    for _ in range(50):
        rows = SparseRows.room(V, 5, 4)
        for _ in range(int(source.integers(1, 6))):
            ids = np.sort(source.choice(V, int(source.integers(1, 5)), replace=False))
            counts = source.multinomial(TOTAL - len(ids), np.full(len(ids), 1 / len(ids))) + 1
            rows.append(QRow(V, ids.astype(np.int32), counts.astype(np.int32)))
        key, round_, first = (int(each) for each in source.integers(0, 2**32, 3))
        address = key << 20 | 7, 3, round_, first
        words = first_words(*address, len(rows))
        assert draw_all(rows, *address) == [
            cpu.draw(row, word) for row, word in zip(rows, words, strict=True)
        ]
