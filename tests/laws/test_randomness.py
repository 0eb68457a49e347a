"""Randomness: exact independence by enumeration, and seeded smoke tests on top of the proofs."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction as F

import pytest

import draftwire.exact.verify as real
from draftwire.errors import ArithmeticRefusalError
from draftwire.exact.words import Address, Domain, KeyedWords, ProposalWords, RequestKey
from spec.oracle.laws import Ending, Tokens
from tests.laws.decoding import Round, Rules, fixed, write
from tests.laws.enumeration import AllWords, Choices, explore
from tests.laws.pairs import FAMILIES, counts_of

REAL = Rules()
TRIALS = 131_072
CHI_SQUARE_2 = 18.42  # upper 1e-4 quantile of chi-square with 2 degrees of freedom


def chi_square(observed: Counter[int], law: list[float]) -> float:
    n = sum(observed.values())
    return sum((observed[v] - n * share) ** 2 / (n * share) for v, share in enumerate(law))


@pytest.mark.slow
def test_r10_chi_square_passes_and_with_shared_noise_it_fails() -> None:
    # alpha = 1e-4, n = 131,072 emitted tokens in rounds of K = 3, seed fixed. p is constant, so the
    # tokens are independent and are the trials. That the mutant gives 63% at a drafted position is
    # proved in test_mutants.py.
    p, m = (1, 6, 3), 100
    counts = counts_of((40, 33, 27))
    source = KeyedWords(RequestKey(20_240_607))
    right: Counter[int] = Counter()
    shared: Counter[int] = Counter()
    number = 0
    while right.total() < TRIALS:
        number += 1
        proposal = []
        for i in range(3):
            address = Address(1, number, i, Domain.PROPOSAL)
            proposal.append((real.draw(counts, source.words(address)), counts))
        verdict = real.verify(
            [p] * 4, proposal, source, generation=1, round=number, first_position=0
        )
        accepted = [token for token, _ in proposal[: verdict.accepted]]
        right.update([*accepted, verdict.token])
        again = verdict.token
        if verdict.outcome == "correction":
            address = Address(1, number, verdict.accepted, Domain.PROPOSAL)
            ticket = real.below(m, source.words(address))
            # The residual is (0, 27, 3) / 30: its only edge, 9/10, lies between two tickets.
            again = 1 if ticket < 90 else 2
        shared.update([*accepted, again])
    assert chi_square(right, [0.1, 0.6, 0.3]) < CHI_SQUARE_2
    assert chi_square(shared, [0.1, 0.6, 0.3]) > 10 * CHI_SQUARE_2
    drafted = 1 - 0.343 / 2.533  # the share of tokens that are no bonus
    assert abs(shared[1] / shared.total() - (0.6 + 0.03 * drafted)) < 0.006


def test_r11_acceptance_and_residual_words_are_independent() -> None:
    # Over all words of three bits: given a rejection, the two words of a position are independent.
    p, counts = (0, 2, 2), counts_of((2, 1, 1))
    p_half = (1, 1, 2)

    for row in (p, p_half):

        def program(choices: Choices, row: tuple[int, ...] = row) -> tuple[int, int] | None:
            source = AllWords(choices, 3)
            address = Address(1, 1, 0, Domain.PROPOSAL)
            token = real.draw(counts, source.words(address), 3)
            verdict = real.verify(
                [row, row],
                [(token, counts)],
                source,
                generation=1,
                round=1,
                first_position=0,
                bits=3,
            )
            if verdict.accepted:
                return None
            read = {address.domain: word for (address, _), word in source.read.items()}
            return read.get(Domain.ACCEPTANCE, -1), read.get(Domain.CORRECTION, -1)

        law = explore(program)
        law.pop(None, None)
        rejected = sum(law.values())
        acceptance: dict[int, F] = {}
        correction: dict[int, F] = {}
        for (a, c), mass in law.items():
            acceptance[a] = acceptance.get(a, F(0)) + mass / rejected
            correction[c] = correction.get(c, F(0)) + mass / rejected
        for (a, c), mass in law.items():
            assert mass / rejected == acceptance[a] * correction[c]
        assert len(law) == len(acceptance) * len(correction)


def test_r11_keyed_words_of_two_domains_are_independent() -> None:
    # alpha = 1e-4, n = 20,000, seed fixed: top three bits of both words, 49 degrees of freedom.
    source = KeyedWords(RequestKey(11))
    table: Counter[tuple[int, int]] = Counter()
    n = 20_000
    for position in range(n):
        pair = [
            next(source.words(Address(1, 1, position, domain))) >> 21
            for domain in (Domain.ACCEPTANCE, Domain.CORRECTION)
        ]
        table[pair[0], pair[1]] += 1
    expected = n / 64
    statistic = sum((table[a, c] - expected) ** 2 / expected for a in range(8) for c in range(8))
    assert statistic < 112  # upper 1e-4 quantile of chi-square with 63 degrees (all margins known)


def test_r13_seeded_texts_in_a_batch_equal_their_solo_runs() -> None:
    pair, ending = FAMILIES["unrelated"](4, 16), Ending(12)

    def solo(seed: int) -> Tokens:
        return write(REAL, pair, fixed(3), ending, KeyedWords(RequestKey(seed)), 24)

    sources = {name: KeyedWords(RequestKey(key)) for name, key in (("1", 1), ("-", 999), ("2", 2))}
    texts: dict[str, Tokens] = dict.fromkeys(sources, ())
    for number in range(1, 13):  # one round of every request after the other, from its own words
        for name, source in sources.items():
            if not ending.ended(texts[name]):
                emitted = REAL.emit(Round(pair, number, texts[name], 3, source, 24))
                texts[name] = ending.extend(texts[name], emitted)
    assert texts["1"] == solo(1)
    assert texts["2"] == solo(2)
    assert texts["1"] != texts["2"]


def test_r14_streams_of_identical_requests_share_no_word() -> None:
    requests = [RequestKey(5, stream) for stream in range(20)]
    assert len({request.key(domain) for request in requests for domain in Domain}) == 100
    firsts = set()
    for request in requests:
        words = KeyedWords(request).words(Address(1, 1, 0, Domain.PROPOSAL))
        firsts.add(tuple(next(words) for _ in range(4)))
    assert len(firsts) == 20


def test_r14_proposal_key_tells_nothing_of_other_domains() -> None:
    request = RequestKey(3)
    words = ProposalWords(request.proposal_key)
    address = Address(1, 2, 3, Domain.PROPOSAL)
    assert next(words.words(address)) == next(KeyedWords(request).words(address))
    with pytest.raises(ArithmeticRefusalError):
        next(words.words(Address(1, 2, 3, Domain.ACCEPTANCE)))
