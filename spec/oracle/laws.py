"""Laws as fractions: of one decision, of one round, and of the whole emitted text.

A *law* is a dict from outcomes to probabilities that sum to one; impossible outcomes are left out.
A *table* gives a row of probabilities for a context, the tuple of tokens before it. Everything here
follows from A16 to A20 alone; the theorem that tests hold the code to is
``decoder_law(...) == target_law(...)`` for every drafter, depth schedule and ending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from spec.oracle.decisions import Row, acceptance, normalise, residual

Tokens = tuple[int, ...]
Table = Callable[[Tokens], Row]
Law = dict[Tokens, Fraction]
Schedule = Callable[[int, Tokens], int]
Admission = Callable[[Tokens], bool]


def add(law: dict[Tokens, Fraction], outcome: Tokens, probability: Fraction) -> None:
    """Add probability to an outcome; nothing is added for zero, so that laws compare as dicts."""
    if probability:
        law[outcome] = law.get(outcome, Fraction(0)) + probability


# One decision ------------------------------------------------------------------------------------


def draw_law(counts: Sequence[int]) -> tuple[Fraction, ...]:
    """A16: q itself, count / M."""
    return normalise(counts)


def correction_law(p: Row, q: Row) -> tuple[Fraction, ...]:
    """A19: the residual, normalised."""
    return normalise(residual(p, q))


def one_token_law(p: Row, q: Row) -> tuple[Fraction, ...]:
    """The law of the token emitted at a position with one draft: accepted, or else corrected.

    min(p, q) from acceptance and (sum of the rejected mass) x residual from correction; it is p.
    """
    emitted = [b * acceptance(p, q, x) if b else Fraction(0) for x, b in enumerate(q)]
    rejected = 1 - sum(emitted)
    if rejected == 0:
        return tuple(emitted)
    fixed = correction_law(p, q)
    return tuple(a + rejected * r for a, r in zip(emitted, fixed, strict=True))


# One round ---------------------------------------------------------------------------------------


def always(context: Tokens) -> bool:
    """Every draft is admitted: a round of fixed depth."""
    return True


def round_law(
    target: Table, drafter: Table, context: Tokens, depth: int, admits: Admission = always
) -> Law:
    """The law of the tokens that one round emits after ``context``.

    Depth 0 is a target-only round. An outcome holds the accepted drafts and then the correction or
    bonus: one to depth + 1 tokens. admits: whether the draft after a context of this round, drafts
    included, is drawn and verified (A23, P35); a round ends at the first that is not.
    """
    p = target(context)
    law: Law = {}
    if depth == 0 or not admits(context):
        for y, mass in enumerate(p):
            add(law, (y,), mass)
        return law
    q = drafter(context)
    rejected = Fraction(0)
    for x, mass in enumerate(q):
        if mass == 0:
            continue
        accepted = mass * acceptance(p, q, x)
        rejected += mass - accepted
        if accepted:
            rests = round_law(target, drafter, (*context, x), depth - 1, admits)
            for rest, share in rests.items():
                add(law, (x, *rest), accepted * share)
    if rejected:
        for y, share in enumerate(correction_law(p, q)):
            add(law, (y,), rejected * share)
    return law


# The whole text ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """When a text ends: after ``max_tokens``, an end token, or a stop sequence, whichever is first.

    The token that ends the text belongs to it; nothing after it does.
    """

    max_tokens: int
    end_tokens: frozenset[int] = frozenset()
    stops: tuple[Tokens, ...] = ()

    def ended(self, text: Tokens) -> bool:
        """Whether ``text`` is complete."""
        return (
            len(text) >= self.max_tokens
            or bool(self.end_tokens.intersection(text[-1:]))
            or any(text[-len(stop) :] == stop for stop in self.stops)
        )

    def extend(self, text: Tokens, emitted: Tokens) -> Tokens:
        """The text after ``emitted``, cut behind the token that ends it."""
        for token in emitted:
            text = (*text, token)
            if self.ended(text):
                break
        return text


def text_law(step: Callable[[int, Tokens], Mapping[Tokens, Fraction]], ending: Ending) -> Law:
    """The law of the whole text when round n after committed text t emits by ``step(n, t)``."""
    law: Law = {}
    running: Law = {(): Fraction(1)}
    number = 0
    while running:
        number += 1
        after: Law = {}
        for text, mass in running.items():
            for emitted, share in step(number, text).items():
                longer = ending.extend(text, emitted)
                add(law if ending.ended(longer) else after, longer, mass * share)
        running = after
    assert sum(law.values()) == 1, "a law lost or gained probability"
    return law


def target_law(target: Table, ending: Ending) -> Law:
    """The law of the text that the target alone writes."""
    return text_law(lambda _, text: round_law(target, target, text, 0), ending)


def decoder_law(
    target: Table,
    drafter: Table,
    schedule: Schedule,
    ending: Ending,
    admits: Admission = always,
) -> Law:
    """The law of the text of a speculative decoder with commits between its rounds.

    ``schedule(round, text)`` is the depth, from things known before the round's first draw; rounds
    count from 1. admits: as of ``round_law``.
    """

    def step(number: int, text: Tokens) -> Law:
        return round_law(target, drafter, text, schedule(number, text), admits)

    return text_law(step, ending)
