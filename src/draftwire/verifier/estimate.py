"""What a layout and a depth would bring, from times that were measured; and what to change.

Plain arithmetic over measurements: no clock, no model, no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from draftwire.verifier.deadlines import DeadlineBounds

_SELDOM: Final = 0.5  # a first draft accepted less often than this is worth a word
_ROOM: Final = 4.0  # a deadline is at least so many usual rounds
_LONGEST: Final = DeadlineBounds().most  # seconds; of any deadline that is derived
_BETTER: Final = 1.05  # a change is advised when it brings this much


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians in seconds, and acceptance.

    target: a pass of the target over one new token; target_deep: over ``depth`` drafts and one,
    with their verification. draft: a drafted token. fixed: what a round costs beside that, the
    round trip included; byte: each byte of a reply. accepted: for each position, the share of
    proposals that it was accepted in (with everything before it). depth: of the measured rounds.
    round_trip: a PING.
    """

    target: float
    target_deep: float
    draft: float
    fixed: float
    byte: float
    round_trip: float
    depth: int
    accepted: tuple[float, ...]

    def tokens(self, depth: int) -> float:
        """Return the mean tokens of a round: the drafts up to the first rejection, and one."""
        return 1.0 + sum(self.accepted[:depth])

    def target_pass(self, depth: int) -> float:
        """Return the seconds of a pass over ``depth`` drafts, on a line through the measured."""
        return self.target + (self.target_deep - self.target) * depth / self.depth

    def wire(self, size: int) -> float:
        """Return the seconds that a reply of ``size`` bytes takes beside its drafting."""
        return self.fixed + size * self.byte

    @property
    def alone(self) -> float:
        """Tokens/s of the target alone."""
        return 1.0 / self.target


@dataclass(frozen=True, slots=True)
class Estimate:
    """One layout at its best depth. size: bytes of one reply. seconds: of a round."""

    layout: str
    depth: int
    size: int
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens/s."""
        return self.tokens / self.seconds


def at(measured: Measured, layout: str, depth: int, size: int) -> Estimate:
    """Return the estimate for one layout and depth; size: bytes of one reply."""
    seconds = measured.target_pass(depth) + depth * measured.draft + measured.wire(size)
    return Estimate(layout, depth, size, measured.tokens(depth), seconds)


def best(measured: Measured, layout: str, sizes: Sequence[int]) -> Estimate:
    """Return the depth that brings most; sizes: bytes of a reply of depth 1, 2, and so on."""
    return max(
        (at(measured, layout, depth, size) for depth, size in enumerate(sizes, 1)),
        key=lambda estimate: estimate.rate,
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be run, and the limits around it.

    seeded_deadline: seconds a round, where a seed fixes it; it is derived otherwise.
    """

    layout: str
    depth: int
    seeded_deadline: float
    target_context: int
    drafter_context: int


def advice(
    measured: Measured, asked: Estimate, estimates: Sequence[Estimate], wanted: Wanted
) -> Iterator[str]:
    """Yield what to change, a sentence each, the most important first; nothing if all is well."""
    top = max(estimates, key=lambda each: (each.rate, each.layout == wanted.layout))
    even = len(estimates) > 1 and all(each.rate == top.rate for each in estimates)
    if top.rate <= measured.alone:
        yield from _not_worth(measured, top)
    elif top.rate > asked.rate * _BETTER:
        changes = [f"--layout {top.layout}"] if top.layout != wanted.layout else []
        changes += [f"--depth {top.depth}"] if top.depth != wanted.depth else []
        yield (
            f"use {' '.join(changes)}: about {top.rate:.1f} tokens/s rather than the"
            f" {asked.rate:.1f} of {wanted.layout} at depth {wanted.depth}"
            + ("; layouts make no difference here" if even else "")
        )
    if measured.accepted and measured.accepted[0] < _SELDOM:
        yield (
            f"the drafter's first token is accepted {measured.accepted[0]:.0%} of the time: a"
            " drafter nearer to the target, or another --draft-temperature, brings more"
        )
    usual = top.seconds - measured.target_pass(top.depth)
    if usual > _LONGEST:
        yield (
            f"a usual proposal takes {usual:.0f} s, and no derived deadline is longer than"
            f" {_LONGEST:g} s: set --deadline-ms {_generous(usual)} or more"
        )
    elif wanted.seeded_deadline < usual * _ROOM:
        yield (
            f"a usual proposal takes {usual * 1e3:.0f} ms: with --seed, set --deadline-ms"
            f" {_generous(usual)} or more, so that only failures meet it; without, the deadline"
            " follows the rounds"
        )
    if wanted.drafter_context < wanted.target_context:
        yield (
            f"the drafter's context holds {wanted.drafter_context} tokens and the target's"
            f" {wanted.target_context}: past that, texts go on with the target alone; choose a"
            " drafter with a longer context if yours are longer"
        )


def _generous(usual: float) -> int:
    """Milliseconds that only failures take."""
    return max(1, round(usual * _ROOM * 1e3))


def _not_worth(measured: Measured, top: Estimate) -> Iterator[str]:
    drafting, wire = top.depth * measured.draft, measured.wire(top.size)
    yield (
        f"drafting would be slower than the target alone: {top.rate:.1f} tokens/s at best, against"
        f" {measured.alone:.1f}"
    )
    if drafting >= wire:
        yield (
            f"a drafted token takes {measured.draft * 1e3:.2f} ms and a target pass"
            f" {measured.target * 1e3:.2f} ms: use a smaller drafter, or a faster machine for it"
        )
    elif measured.round_trip * 2 >= wire:
        yield (
            f"the round trip alone takes {measured.round_trip * 1e3:.2f} ms: put the machines on"
            " one switch, by cable"
        )
    else:
        yield (
            f"a proposal spends {wire * 1e3:.2f} ms on the way and in the programs beside its"
            " drafting: use a sparse layout, a faster link, or a CPU that is less busy"
        )
