"""The oracle's laws by themselves: the theorem in fractions, and how texts end."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from spec.oracle.decisions import residual
from spec.oracle.laws import (
    Ending,
    Tokens,
    correction_law,
    decoder_law,
    draw_law,
    one_token_law,
    round_law,
    target_law,
)

P = (F(1, 2), F(1, 2), F(0))
Q = (F(1, 2), F(1, 4), F(1, 4))


def table(text: Tokens) -> tuple[F, ...]:
    heads = F(1 + len(text), 5 + len(text))
    return (heads, 1 - heads) if sum(text) % 2 else (1 - heads, heads)


def drafts(text: Tokens) -> tuple[F, ...]:
    return (F(1), F(0)) if len(text) % 3 == 0 else (F(2, 7), F(5, 7))


def test_one_decision() -> None:
    assert draw_law((1, 0, 3)) == (F(1, 4), 0, F(3, 4))
    assert residual(P, Q) == (0, F(1, 4), 0)
    assert correction_law(P, Q) == (0, 1, 0)
    assert one_token_law(P, Q) == P
    assert one_token_law(P, P) == P


def test_round_of_the_published_example() -> None:
    law = round_law(lambda text: P, lambda text: Q, (), 1)
    assert sum(law.values()) == 1
    assert sum(mass for text, mass in law.items() if text[0] == 0) == F(1, 2)
    assert all(2 not in text for text in law)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "ending",
    [Ending(1), Ending(5), Ending(5, frozenset({1})), Ending(6, stops=((0, 0), (1, 1, 1)))],
)
def test_a_decoder_has_the_law_of_its_target(depth: int, ending: Ending) -> None:
    assert decoder_law(table, drafts, lambda n, text: depth, ending) == target_law(table, ending)
    by_round = decoder_law(table, drafts, lambda n, text: (n + len(text)) % 3, ending)
    assert by_round == target_law(table, ending)


def test_endings() -> None:
    ending = Ending(4, frozenset({9}), ((1, 2),))
    assert ending.extend((), (5, 9, 5)) == (5, 9)
    assert ending.extend((1,), (2, 3)) == (1, 2)
    assert ending.extend((5, 5), (5, 5, 5)) == (5, 5, 5, 5)
    assert not ending.ended(())
    assert not ending.ended((2, 1))
