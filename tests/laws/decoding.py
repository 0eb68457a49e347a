"""A speculative decoder made of the real draw and verify, over tables, with commits between rounds.

:class:`Rules` are the real ones; a mutant overrides one method. ``emit`` is one round, and a whole
text is rounds until it ends. It joins no verifier and drafter: sessions and wire are
left out, so that every choice of every word can be enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import draftwire.exact.verify as real
from draftwire.exact.counts import Counts
from draftwire.exact.words import Address, Domain, WordSource
from spec.oracle.laws import Ending, Law, Schedule, Tokens, decoder_law, target_law, text_law
from tests.laws.enumeration import AllWords, Choices, Points, explore, primitives_by_law

PROMPT = 5  # positions taken by the prompt; the first token of a text has this one
GENERATION = 1

Proposal = list[tuple[int, Counts]]


@dataclass(frozen=True)
class Pair:
    """A target and a drafter as tables: integer weights of p, and the counts of q, by context."""

    p: Callable[[Tokens], Sequence[int]]
    q: Callable[[Tokens], Counts]

    def target(self, text: Tokens) -> Sequence[Fraction]:
        """P as fractions, for the oracle."""
        row = self.p(text)
        return [Fraction(a, sum(row)) for a in row]

    def drafter(self, text: Tokens) -> Sequence[Fraction]:
        """Q as fractions, for the oracle."""
        counts = self.q(text)
        return [Fraction(c, counts.total) for c in counts.dense()]

    def rows(self, text: Tokens, proposal: Proposal) -> list[Sequence[int]]:
        """The K + 1 rows of p with the drafts in place."""
        drafts = [token for token, _ in proposal]
        return [self.p((*text, *drafts[:i])) for i in range(len(drafts) + 1)]


@dataclass(frozen=True)
class Round:
    """Everything that a round depends on."""

    pair: Pair
    number: int
    text: Tokens
    depth: int
    source: WordSource
    bits: int

    @property
    def first_position(self) -> int:
        """Absolute position of the first token of the round."""
        return PROMPT + len(self.text)

    def address(self, index: int, domain: Domain) -> Address:
        """The address of a domain's words for the token ``index`` of the round."""
        return Address(GENERATION, self.number, self.first_position + index, domain)


class Rules:
    """The real rules: draw each token from its own q, verify the whole proposal, commit."""

    shared_noise = False  # whether an address may be read twice

    def propose(self, this: Round) -> Proposal:
        """Draw ``depth`` tokens, each from the counts conditioned on those before it."""
        proposal: Proposal = []
        for i in range(this.depth):
            drafts = tuple(token for token, _ in proposal)
            counts = this.pair.q((*this.text, *drafts))
            proposal.append((self.draw(this, i, counts, drafts), counts))
        return proposal

    def draw(self, this: Round, index: int, counts: Counts, drafts: Tokens) -> int:
        """One draw (A16)."""
        return real.draw(counts, this.source.words(this.address(index, Domain.PROPOSAL)), this.bits)

    def judge(self, this: Round, proposal: Proposal) -> Tokens:
        """The tokens that a proposal ends in: accepted drafts, and a correction or bonus."""
        verdict = real.verify(
            this.pair.rows(this.text, proposal),
            proposal,
            this.source,
            generation=GENERATION,
            round=this.number,
            first_position=this.first_position,
            bits=this.bits,
        )
        return (*(token for token, _ in proposal[: verdict.accepted]), verdict.token)

    def alone(self, this: Round) -> Tokens:
        """A round without a proposal (A20)."""
        words = this.source.words(this.address(0, Domain.TARGET_ONLY))
        return (real.target(this.pair.p(this.text), words, this.bits),)

    def emit(self, this: Round) -> Tokens:
        """One round, of the depth that was fixed before it."""
        return self.judge(this, self.propose(this)) if this.depth else self.alone(this)


def fixed(depth: int) -> Schedule:
    """The same depth in every round."""
    return lambda number, text: depth


def write(
    rules: Rules, pair: Pair, schedule: Schedule, ending: Ending, source: WordSource, bits: int
) -> Tokens:
    """One whole text from one source of words: rounds with commits until it ends."""
    text: Tokens = ()
    number = 0
    while not ending.ended(text):
        number += 1
        this = Round(pair, number, text, schedule(number, text), source, bits)
        text = ending.extend(text, rules.emit(this))
    return text


def law_over_all_words(
    rules: Rules, pair: Pair, schedule: Schedule, ending: Ending, bits: int
) -> Law:
    """The law of whole texts, over every value of every word that any round reads."""

    def program(choices: Choices) -> Tokens:
        return write(rules, pair, schedule, ending, AllWords(choices, bits), bits)

    return explore(program)


def law_of_whole_texts(
    rules: Rules, pair: Pair, schedule: Schedule, ending: Ending, *, draws: bool = False
) -> Law:
    """The law of whole texts, by decisions, all rounds of a text from one source."""

    def program(choices: Choices) -> Tokens:
        source = Points(choices, shared=rules.shared_noise)
        return write(rules, pair, schedule, ending, source, 24)

    with primitives_by_law(draws=draws):
        return explore(program)


def law_by_rounds(
    rules: Rules, pair: Pair, schedule: Schedule, ending: Ending, *, draws: bool = False
) -> Law:
    """The law of whole texts, by decisions, each round enumerated once for each committed text.

    Rounds read different addresses (``law_of_whole_texts`` and ``law_over_all_words`` do not take
    that for granted), so the text is a Markov chain whose steps are these laws.
    """

    def step(number: int, text: Tokens) -> Law:
        depth = schedule(number, text)

        def program(choices: Choices) -> Tokens:
            source = Points(choices, shared=rules.shared_noise)
            return rules.emit(Round(pair, number, text, depth, source, 24))

        return explore(program)

    with primitives_by_law(draws=draws):
        return text_law(step, ending)


def assert_lossless(law: Law, pair: Pair, schedule: Schedule, ending: Ending) -> None:
    """The law is the target's alone, and the oracle's of a decoder with this drafter as well."""
    assert law == target_law(pair.target, ending)
    assert law == decoder_law(pair.target, pair.drafter, schedule, ending)


def first_token(law: Law, vocab_size: int) -> list[Fraction]:
    """The marginal law of the first token."""
    marginal = [Fraction(0)] * vocab_size
    for text, mass in law.items():
        marginal[text[0]] += mass
    return marginal
