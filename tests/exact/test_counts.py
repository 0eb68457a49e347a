"""A row of counts is a distribution or is refused."""

import pytest

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.counts import Counts


def test_of_and_dense():
    counts = Counts(5, 8, (1, 4), (3, 5))
    assert [counts.of(token) for token in range(5)] == counts.dense() == [0, 3, 0, 0, 5]


@pytest.mark.parametrize(
    ("ids", "counts", "code"),
    [
        ((), (), RefusalCode.OUT_OF_RANGE),
        ((-2, 1), (3, 5), RefusalCode.OUT_OF_RANGE),
        ((1, 5), (3, 5), RefusalCode.OUT_OF_RANGE),
        ((1, 1), (3, 5), RefusalCode.OUT_OF_RANGE),
        ((4, 1), (3, 5), RefusalCode.OUT_OF_RANGE),
        ((1, 4), (0, 8), RefusalCode.INCONSISTENT_ALLOCATION),
        ((1, 4), (-1, 9), RefusalCode.INCONSISTENT_ALLOCATION),
        ((1, 4), (3, 4), RefusalCode.INCONSISTENT_ALLOCATION),
        ((1, 4), (8,), RefusalCode.INCONSISTENT_ALLOCATION),
    ],
)
def test_what_is_no_distribution_is_refused(ids, counts, code):
    with pytest.raises(ArithmeticRefusalError) as refusal:
        Counts(5, 8, ids, counts)
    assert refusal.value.code is code
