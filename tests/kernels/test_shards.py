"""Splits, and the emulator's own rules: every rank at the same collective, or an error."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from draftwire.errors import ArithmeticRefusalError, ConfigurationError
from draftwire.kernels.shards import shard as shards
from draftwire.kernels.shards.emulator import OutOfStepError, emulate
from draftwire.kernels.shards.shard import Integers, Shard, Steps, drive, even_shards, shards_at


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 129_280])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_even_shards_cover_the_vocabulary_once(vocab_size: int, count: int) -> None:
    split = even_shards(vocab_size, count)
    assert [shard.rank for shard in split] == list(range(count))
    assert {shard.size for shard in split} == {count}
    assert split[0].begin == 0 and split[-1].end == vocab_size
    assert all(a.end == b.begin for a, b in pairwise(split))
    assert max(shard.width for shard in split) == -(-vocab_size // count)


def test_the_shards_of_the_origin() -> None:
    assert [(s.begin, s.end) for s in even_shards(129_280, 2)] == [(0, 64_640), (64_640, 129_280)]


def test_empty_shards_and_a_shard_of_one_id() -> None:
    split = shards_at(5, [0, 2, 3, 3])
    assert [shard.width for shard in split] == [0, 2, 1, 0, 2]
    assert [shard.owns(2) for shard in split] == [False, False, True, False, False]
    assert [shard.leads for shard in split] == [True, False, False, False, False]


@pytest.mark.parametrize("bad", [(4, -1, 2), (4, 3, 2), (4, 0, 5), (4, 0, 4, 1, 1), (4, 0, 4, -1)])
def test_a_range_outside_the_vocabulary_is_refused(bad: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError):
        Shard(*bad)


def test_no_shards_and_turned_cuts_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        even_shards(4, 0)
    with pytest.raises(ConfigurationError):
        shards_at(4, [3, 1])


def told(rank: int) -> Steps[list[list[int]]]:
    own = np.array([rank, 10 - rank])
    answers: list[Integers] = []
    for step in (shards.maximum, shards.total, shards.broadcast, shards.gather):
        answers.append((yield from step(own)))
    return [answer.tolist() for answer in answers]


def test_what_each_collective_answers() -> None:
    expected = [[2, 10], [3, 27], [0, 10], [[0, 10], [1, 9], [2, 8]]]
    assert emulate([told(rank) for rank in range(3)]) == [expected] * 3


class Alone:
    """A group of one rank."""

    rank, size = 0, 1

    def maximum(self, values: Integers) -> Integers:
        return values

    sum = broadcast = maximum

    def gather(self, values: Integers) -> Integers:
        return values[None]


def test_drive_runs_the_same_steps_over_a_real_group() -> None:
    assert drive(Alone(), told(4)) == emulate([told(4)])[0]


def test_ranks_that_are_not_at_the_same_collective_are_a_bug() -> None:
    def short() -> Steps[int]:
        return len((yield from shards.total(np.zeros(2, np.int64))))

    def other() -> Steps[int]:
        return len((yield from shards.maximum(np.zeros(2, np.int64))))

    def done() -> Steps[int]:
        return 0
        yield

    def float_one() -> Steps[int]:
        return len((yield from shards.total(np.zeros(2))))  # type: ignore[arg-type]

    for ranks in ([short(), other()], [short(), done()], [float_one()]):
        with pytest.raises(OutOfStepError):
            emulate(ranks)


def test_what_a_rank_raises_ends_the_others() -> None:
    ended = []

    def waits() -> Steps[None]:
        try:
            yield from shards.total(np.zeros(1, np.int64))
        finally:
            ended.append(True)

    def fails() -> Steps[None]:
        shards.raise_refusal(1)
        yield

    with pytest.raises(ArithmeticRefusalError):
        emulate([waits(), fails()])
    assert ended == [True]
