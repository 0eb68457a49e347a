"""The compiled words are those of the exact layer."""

from __future__ import annotations

import random

import pytest

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.words import Address, Domain, ProposalWords
from draftwire.kernels.words import first_words

EDGES = (0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0)


def test_first_words_equal_the_exact_ones() -> None:
    source = random.Random(1)
    for _ in range(500):
        key = source.choice((0, (1 << 64) - 1, source.getrandbits(64)))
        generation, round_, first = (
            source.choice((*EDGES, source.getrandbits(32) & 0xFFFFFFF0)) for _ in range(3)
        )
        words = ProposalWords(key)
        expected = [
            next(words.words(Address(generation, round_, first + i, Domain.PROPOSAL)))
            for i in range(8)
        ]
        assert first_words(key, generation, round_, first, 8) == expected


@pytest.mark.parametrize(
    "outside",
    [
        (1 << 64, 0, 0, 0),
        (-1, 0, 0, 0),
        (0, 1 << 32, 0, 0),
        (0, 0, -1, 0),
        (0, 0, 0, (1 << 32) - 1),
    ],
)
def test_what_is_outside_an_address_is_refused(outside: tuple[int, int, int, int]) -> None:
    with pytest.raises(ArithmeticRefusalError) as caught:
        first_words(*outside, 2)
    assert caught.value.code is RefusalCode.OUT_OF_RANGE


def test_no_words_at_all() -> None:
    assert first_words(1, 1, 1, 1, 0) == []
