"""Token buckets: what may go through in a time, exactly."""

from __future__ import annotations

import pytest

from draftwire.transport.limits import TokenBucket


def test_a_burst_is_free_and_more_is_waited_for() -> None:
    bucket = TokenBucket(rate=4, burst=8, now=0.0)
    assert [bucket.spend(4, 0.0) for _ in range(4)] == [0.0, 0.0, 1.0, 2.0]
    assert bucket.spend(0, 2.0) == 0.0
    assert bucket.spend(1, 2.0) == 0.25


def test_a_pause_gives_no_more_than_one_burst() -> None:
    bucket = TokenBucket(rate=4, burst=8, now=0.0)
    assert bucket.spend(8, 1000.0) == 0.0
    assert bucket.spend(1, 1000.0) == 0.25


@pytest.mark.parametrize("amount", [1, 3, 64])
def test_who_waits_as_told_never_exceeds_the_rate(amount: int) -> None:
    bucket, now, spent = TokenBucket(rate=16, burst=32, now=0.0), 0.0, 0
    for _ in range(200):
        now += bucket.spend(amount, now)
        spent += amount
        assert spent <= 32 + 16 * now
    assert spent >= 16 * now  # and what is allowed can be had
