"""A14 and A15, as laws: over all words, solved exactly, not sampled."""

from fractions import Fraction
from itertools import chain, combinations_with_replacement, product

import pytest

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.decide import Undecided, begin, below, locate, narrow, words_below

from .digits import digits


class OutOfWords(Exception):
    pass


def finite(words):
    yield from words
    raise OutOfWords


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_below_is_uniform_over_all_words_for_every_bound(bits):
    for bound in range(1, 35):
        count = words_below(bound, bits)
        assert 2 ** (bits * count) >= bound
        assert count == 0 or 2 ** (bits * (count - 1)) < bound
        landed = dict.fromkeys(range(bound), 0)
        rejected = []
        for attempt in product(range(2**bits), repeat=count):
            try:
                landed[below(bound, finite(attempt), bits)] += 1
            except OutOfWords:
                rejected.append(attempt)
        # One attempt gives every value equally often, and a rejected one begins afresh: so uniform.
        assert len(set(landed.values())) == 1
        assert 2 * len(rejected) < 2 ** (bits * count)
        fresh = (0,) * count
        for attempt in rejected:
            assert below(bound, finite(attempt + fresh), bits) == below(bound, iter(fresh), bits)


def test_below_a_power_of_two_is_one_word_as_it_is():
    assert [below(8, iter([word]), 3) for word in range(8)] == list(range(8))


def test_below_one_reads_no_word():
    assert below(1, finite([]), 24) == 0


def laws(start, bits, known):
    """The law of the answer (relative to the base) from every state reachable from ``start``.

    The states form a finite Markov chain; the answer's law is the solution of a linear system.
    """
    states, todo = [], [start]
    while todo:
        state = todo.pop()
        if state in known or state in states:
            continue
        states.append(state)
        for word in range(2**bits):
            step = narrow(Undecided(0, *state), word, bits)
            if isinstance(step, Undecided):
                todo.append((step.edges, step.denominator))
    width = len(start[0]) + 1
    weight = Fraction(1, 2**bits)
    matrix = []
    for state in states:
        # law(state)[j] - sum over words of weight * law(next)[j - base] = weight of answers j
        coefficients = {}
        constant = [Fraction(0)] * width
        for word in range(2**bits):
            step = narrow(Undecided(0, *state), word, bits)
            if isinstance(step, int):
                constant[step] += weight
                continue
            target = (step.edges, step.denominator)
            if target in known:
                for j, mass in enumerate(known[target]):
                    constant[j + step.base] += weight * mass
            else:
                key = (target, step.base)
                coefficients[key] = coefficients.get(key, 0) + weight
        matrix.append((coefficients, constant))
    solve(states, matrix, width, known)


def solve(states, equations, width, known):
    unknown = {
        (state, j): n
        for n, (state, j) in enumerate((state, j) for state in states for j in range(width))
    }
    rows = []
    for state, (coefficients, constant) in zip(states, equations, strict=True):
        for j in range(width):
            row = [Fraction(0)] * (len(unknown) + 1)
            row[unknown[state, j]] += 1
            for (target, base), factor in coefficients.items():
                if j >= base:
                    row[unknown[target, j - base]] -= factor
            row[-1] = constant[j]
            rows.append(row)
    for column in range(len(unknown)):
        pivot = next(n for n in range(column, len(rows)) if rows[n][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column][column]
        rows[column] = [value / head for value in rows[column]]
        for n, row in enumerate(rows):
            if n != column and row[column]:
                factor = row[column]
                rows[n] = [a - factor * b for a, b in zip(row, rows[column], strict=True)]
    for state in states:
        known[state] = [rows[unknown[state, j]][-1] for j in range(width)]


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_locate_has_exactly_the_law_of_its_edges(bits):
    for denominator in range(1, 9):
        known = {}
        for count in range(4):
            for edges in combinations_with_replacement(range(denominator + 1), count):
                expected = [
                    Fraction(high - low, denominator)
                    for low, high in zip((0, *edges), (*edges, denominator), strict=True)
                ]
                state = begin(edges, denominator)
                if isinstance(state, int):
                    assert expected[state] == 1
                    continue
                key = (state.edges, state.denominator)
                if key not in known:
                    laws(key, bits, known)
                law = [Fraction(0)] * (count + 1)
                for j, mass in enumerate(known[key]):
                    if mass:
                        law[j + state.base] = mass
                assert law == expected, (edges, denominator)


@pytest.mark.parametrize("bits", [1, 2, 5, 24])
def test_locate_counts_the_edges_at_or_below_the_number_that_the_words_spell(bits):
    for denominator in (1, 2, 3, 5, 8, 12):
        for edges in combinations_with_replacement(range(denominator + 1), 3):
            for parts in (7, 16):
                for part in range(parts):
                    u = Fraction(part, parts)
                    endless = any(
                        Fraction(edge, denominator) == u and u.denominator & (u.denominator - 1)
                        for edge in edges
                    )
                    if endless:  # the words never decide a tie that has no last digit
                        continue
                    expected = sum(Fraction(edge, denominator) <= u for edge in edges)
                    assert locate(edges, denominator, digits(u, bits), bits) == expected


def test_a_word_that_ties_with_the_edge_is_extended_by_another():
    edges, denominator = [1], 3  # 1/3 = 0.0101... in binary: the word 01 of two bits is undecided
    assert narrow(Undecided(0, (1,), 3), 1, 2) == Undecided(0, (1,), 3)
    assert locate(edges, denominator, chain([1, 1, 0]), 2) == 0
    assert locate(edges, denominator, chain([1, 1, 2]), 2) == 1


def test_locate_reads_no_word_when_nothing_is_open():
    assert locate([0, 0, 5], 5, finite([])) == 2
    assert locate([], 5, finite([])) == 0


@pytest.mark.parametrize(("edges", "denominator"), [([-1], 3), ([4], 3), ([2, 1], 3), ([0], 0)])
def test_edges_that_are_none_are_refused(edges, denominator):
    with pytest.raises(ArithmeticRefusalError) as refusal:
        locate(edges, denominator, finite([]))
    assert refusal.value.code is RefusalCode.OUT_OF_RANGE


def test_no_integer_is_below_zero():
    with pytest.raises(ArithmeticRefusalError):
        below(0, finite([]))
