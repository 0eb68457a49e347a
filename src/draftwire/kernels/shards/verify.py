"""Verification over vocabulary shards: each rank its own ids, one leader for every decision (A29).

Sums are binary64 with the bound of :mod:`draftwire.kernels.cpu.verify_loops`: no term passes
through more additions than there, and one more for each shard, so a row of V ids over n shards has
the bound of V + 512 n ids. What falls inside the bound is decided from exact integers. Verdicts
therefore equal those of :mod:`draftwire.kernels.cpu` and :mod:`draftwire.exact` on the whole rows,
bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import decide
from draftwire.exact import shards as exact
from draftwire.exact.words import WORD_BITS, Address, Domain, WordSource
from draftwire.kernels.cpu import verify_loops as cpu_verify
from draftwire.kernels.protocol import Verdict
from draftwire.kernels.shards import exact as shards_exact
from draftwire.kernels.shards import loops
from draftwire.kernels.shards.shard import (
    OK,
    Integers,
    Shard,
    Steps,
    broadcast,
    gather,
    maximum,
)
from draftwire.wire.registry import TOTAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SPAN: Final = 1 << 2 * WORD_BITS  # values of the first two words
_FLAGS, _TOTAL, _WEIGHT, _COUNT = range(4)  # what a rank tells of a row
_STATE, _INDEX, _SCALE = range(3)  # a plan; the drafts before the index stand
_DRAW, _EXACT, _REFUSED = range(3)  # its states; a refused one has its status for a scale


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request's round stands: what its words are addressed by."""

    generation: int
    round: int
    first_position: int

    def address(self, index: int, domain: Domain) -> Address:
        """The address of a domain's words for position ``index`` of the round."""
        return Address(self.generation, self.round, self.first_position + index, domain)


@dataclass(frozen=True, slots=True)
class Rounds:
    """B rounds to be judged together, as one rank sees them.

    rows: binary64, contiguous (B, K + 1, width), the rank's columns of p, not normalised but on one
    scale over all ranks. tokens: int64 (B, K), the drafts, the same on every rank. counts: int32
    (B, K, width), the rank's columns of the q's, zeros outside a sparse support. K = 0: rounds
    without a proposal, one token each from p.
    """

    shard: Shard
    rows: NDArray[np.float64]
    tokens: Integers
    counts: NDArray[np.int32]

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit one another (OUT_OF_RANGE)."""
        batch, depth = self.tokens.shape
        fits = self.rows.shape == (batch, depth + 1, self.shard.width)
        fits = fits and self.counts.shape == (batch, depth, self.shard.width)
        if not fits or self.rows.dtype != np.float64 or not self.rows.flags.c_contiguous:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE,
                f"rows {self.rows.shape} and counts {self.counts.shape} of {batch} rounds of"
                f" {depth} drafts on {self.shard.width} ids",
            )
        if ((self.tokens < 0) | (self.tokens >= self.shard.vocab_size)).any():
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE, "a draft lies outside the vocabulary"
            )


@dataclass(frozen=True, slots=True)
class ShardVerdicts:
    """How B rounds ended, the same on every rank; all int64 (B,).

    accepted: drafts accepted, 0..K. tokens: the correction, bonus or target-only id, -1 where the
    row behind the accepted drafts is refused. status: OK or that refusal.
    """

    accepted: Integers
    tokens: Integers
    status: Integers

    def verdict(self, index: int) -> Verdict:
        """One round's verdict."""
        status, token = int(self.status[index]), int(self.tokens[index])
        return Verdict(int(self.accepted[index]), token if status == OK else None, status)


def verify(
    rounds: Rounds,
    places: Sequence[Place],
    sources: Sequence[WordSource] | None,
) -> Steps[ShardVerdicts]:
    """Judge the drafts of B rounds and draw what follows (A18-A20 over shards).

    sources: of each round, on the leader; no other rank has or needs any. Law: what is emitted has
    the law of p alone, whatever the q. Errors: ArithmeticRefusalError OUT_OF_RANGE (shapes).
    """
    judge = _Judge(rounds, places, sources)
    plan = yield from judge.plan()
    tokens, status = yield from judge.draw(plan)
    final = np.stack([plan[:, _INDEX], np.where(status == OK, tokens, -1), status])
    return ShardVerdicts(*(yield from broadcast(final)))


class _Judge:
    """One call of :func:`verify` on one rank."""

    def __init__(
        self,
        rounds: Rounds,
        places: Sequence[Place],
        sources: Sequence[WordSource] | None,
    ) -> None:
        self.shard = rounds.shard
        self.rounds = rounds
        self.places = places
        self.sources = sources if rounds.shard.leads else None
        self.batch, self.depth = rounds.tokens.shape
        self.bound = cpu_verify.bound_of(
            rounds.shard.vocab_size + cpu_verify.BLOCK * rounds.shard.size
        )
        if rounds.shard.leads and (sources is None or len(sources) != self.batch):
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE, "the leader has a source of words for every round"
            )

    # acceptance

    def plan(self) -> Steps[Integers]:
        """What becomes of each round, int64 (B, 3): DRAW, index, scale or REFUSED, index, status.

        A decision inside the bound is taken from the exact masses of its row, and the judging goes
        on from there; without one there is one exchange of facts and one of the plan.
        """
        facts = yield from gather(self._facts())
        plan = np.zeros((self.batch, 3), np.int64)
        leader = _Acceptance(self, facts) if self.sources is not None else None
        if leader is not None:
            for request in range(self.batch):
                plan[request] = leader.judge(request, 0)
        while True:
            plan = (yield from broadcast(plan)).copy()
            asked = np.flatnonzero(plan[:, _STATE] == _EXACT)
            if not asked.size:
                return plan
            rows = [self.rounds.rows[request, plan[request, _INDEX]] for request in asked]
            own = [sum(shards_exact.integers(row)) for row in rows]
            masses = yield from shards_exact.masses_of(own)
            if leader is not None:
                for request, mass in zip(asked, masses, strict=True):
                    index = int(plan[request, _INDEX])
                    accepted = leader.exactly(request, index, sum(mass))
                    plan[request] = leader.judge(request, index, accepted)

    def _facts(self) -> Integers:
        """(B, K + 1, 4) of this rank: flags and sum of each row, and of a draft it owns p and q."""
        rounds = self.rounds
        count, width = self.batch * (self.depth + 1), rounds.shard.width
        flags, totals = np.empty(count, np.int64), np.empty(count)
        loops.survey_weights(rounds.rows.reshape(count, width), flags, totals)
        facts = np.zeros((self.batch, self.depth + 1, 4), np.int64)
        facts[..., _FLAGS] = flags.reshape(self.batch, -1)
        facts[..., _TOTAL] = totals.view(np.int64).reshape(self.batch, -1)
        request, index = np.nonzero(
            (rounds.tokens >= rounds.shard.begin) & (rounds.tokens < rounds.shard.end)
        )
        at = rounds.tokens[request, index] - rounds.shard.begin
        weights = rounds.rows[request, index, at] + 0.0  # -0.0 is 0
        facts[request, index, _WEIGHT] = weights.view(np.int64)
        facts[request, index, _COUNT] = rounds.counts[request, index, at]
        return facts

    # the token that follows

    def draw(self, plan: Integers) -> Steps[tuple[Integers, Integers]]:
        """The token of every round that was not refused, and the status; (B,) both (A29)."""
        refused = plan[:, _STATE] == _REFUSED
        status = np.where(refused, plan[:, _SCALE], OK)
        values = [None if refused[r] else self._values(r, *plan[r, 1:]) for r in range(self.batch)]
        totals = np.zeros(self.batch)
        for request, row in enumerate(values):
            if row is not None:
                sums = np.empty(-(-row.size // cpu_verify.BLOCK))
                totals[request] = cpu_verify.block_sums(row, sums)
        shared = (yield from gather(totals.view(np.int64))).view(np.float64)
        aims = np.full((self.batch, 6), -1.0)
        if self.sources is not None:
            for request in np.flatnonzero(~refused):
                aims[request] = self._aim(request, plan[request], shared[:, request])
        aims = (yield from broadcast(aims.view(np.int64))).view(np.float64)
        tokens = np.full(self.batch, -1, np.int64)
        for request, row in enumerate(values):
            if row is not None and aims[request, 0] == self.shard.rank:
                at = loops.find_within(row, *aims[request, 1:])
                if at != cpu_verify.UNDECIDED:
                    tokens[request] = at + self.rounds.shard.begin
        tokens = (yield from maximum(tokens)).copy()
        for request in np.flatnonzero((tokens < 0) & ~refused):
            found = yield from self._exactly(request, int(plan[request, _INDEX]))
            tokens[request], status[request] = found
        return tokens, status

    def _values(self, request: int, index: int, scale: int) -> NDArray[np.float64]:
        """What the token is drawn from, in binary64: the residual, or p after all K drafts."""
        row: NDArray[np.float64] = self.rounds.rows[request, index]
        if index == self.depth:
            return row
        out: NDArray[np.float64] = np.empty(row.size)
        factor = float(np.int64(scale).view(np.float64))
        loops.residual(row, factor, self.rounds.counts[request, index], out)
        return out

    def _aim(self, request: int, plan: Integers, totals: NDArray[np.float64]) -> list[float]:
        """(shard, sum before it, low, middle, high, slack) of U; the shard is -1 if undecided.

        Nothing is aimed at a shard without mass: the shard is the first that U does not pass.
        """
        index, scale = int(plan[_INDEX]), plan[_SCALE : _SCALE + 1].view(np.float64)[0]
        whole = _fold(totals)
        if scale == 0 or not whole > 0:  # out of the range that binary64 decides in
            return [-1.0] * 6
        first = self._first(request, index, self._domain(index))
        slack = self.bound * (whole if index == self.depth else TOTAL)
        low = first / _SPAN * (whole - slack)
        high = (first + 1) / _SPAN * (whole + slack)
        middle = first / _SPAN * whole
        reached = 0.0
        for shard, mass in enumerate(totals.tolist()):
            if reached + mass > middle:
                return [float(shard), reached, low, middle, high, slack]
            reached += mass
        return [-1.0] * 6

    def _exactly(self, request: int, index: int) -> Steps[tuple[int, int]]:
        """The token from exact integers, and a status (A29); on all ranks at once."""
        own = shards_exact.integers(self.rounds.rows[request, index])
        if index < self.depth:
            mass = sum((yield from shards_exact.masses_of([sum(own)]))[0])
            counts = self.rounds.counts[request, index].tolist()
            own = exact.residuals(own, counts, mass)
        if not (yield from maximum(np.array([any(own)], np.int64)))[0]:
            return -1, RefusalCode.ZERO_RESIDUAL
        source = None if self.sources is None else self.sources[request]
        address = self.places[request].address(index, self._domain(index))
        at = yield from shards_exact.choose(self.shard, own, source, address)
        token = -1 if at is None else at + self.rounds.shard.begin
        return int((yield from maximum(np.array([token], np.int64)))[0]), OK

    def _domain(self, index: int) -> Domain:
        if index < self.depth:
            return Domain.CORRECTION
        return Domain.BONUS if self.depth else Domain.TARGET_ONLY

    def _first(self, request: int, index: int, domain: Domain) -> int:
        """The first 48 bits of U."""
        assert self.sources is not None
        words = self.sources[request].words(self.places[request].address(index, domain))
        high, low = islice(words, 2)
        return high << WORD_BITS | low


class _Acceptance:
    """The leader's part: whether drafts stand, from what the ranks told of their rows (A18)."""

    def __init__(self, judge: _Judge, facts: Integers) -> None:
        """facts: int64 (size, B, K + 1, 4)."""
        self._judge = judge
        self._flags = np.bitwise_or.reduce(facts[..., _FLAGS], axis=0)
        totals = np.ascontiguousarray(facts[..., _TOTAL]).view(np.float64)
        self._totals = _folded(totals)
        self._weights = facts[..., _WEIGHT].sum(axis=0).view(np.float64)  # all but one are 0
        self._counts = facts[..., _COUNT].sum(axis=0)

    def judge(self, request: int, index: int, accepted: bool | None = None) -> tuple[int, int, int]:
        """The plan of a round from draft ``index`` on; ``accepted``: how that one was decided."""
        depth = self._judge.depth
        if index == 0 and (self._counts[request, :depth] == 0).any():
            return _REFUSED, 0, RefusalCode.ZERO_Q
        while True:
            refusal = self._refusal(request, index)
            if refusal is not None:
                return _REFUSED, index, refusal
            if index == depth:
                return _DRAW, index, _pattern(self._scale(request, index))
            if accepted is None:
                accepted = self._accept(request, index)
            if accepted is None:
                return _EXACT, index, 0
            if not accepted:
                return _DRAW, index, _pattern(self._scale(request, index))
            index, accepted = index + 1, None

    def exactly(self, request: int, index: int, mass: int) -> bool:
        """A18 on the exact sum of the row, a whole number of 2^-1074."""
        weight = shards_exact.integers(self._weights[request, index : index + 1])[0]
        ours, theirs = weight * TOTAL, int(self._counts[request, index]) * mass
        if ours == 0 or ours >= theirs:
            return ours > 0
        judge = self._judge
        assert judge.sources is not None
        address = judge.places[request].address(index, Domain.ACCEPTANCE)
        return decide.locate([ours], theirs, judge.sources[request].words(address)) == 0

    def _accept(self, request: int, index: int) -> bool | None:
        """A18 in binary64; None where the bound does not allow it."""
        weight, total = float(self._weights[request, index]), float(self._totals[request, index])
        if weight == 0:
            return False
        if not _in_range(total):
            return None
        count = int(self._counts[request, index])
        threshold = weight * (float(TOTAL) * _SPAN) / (count * total)
        margin = threshold * self._judge.bound
        if threshold - margin >= _SPAN:
            return True
        first = self._judge._first(request, index, Domain.ACCEPTANCE)
        if first + 1 <= threshold - margin:
            return True
        # first = 0 never surely rejects: the threshold is above zero, even where it underflows.
        return False if first > 0 and first >= threshold + margin else None

    def _refusal(self, request: int, index: int) -> RefusalCode | None:
        flags = int(self._flags[request, index])
        if flags & loops.NON_FINITE:
            return RefusalCode.NON_FINITE
        if flags & loops.NEGATIVE:
            return RefusalCode.NEGATIVE_WEIGHT
        return RefusalCode.ZERO_MASS if self._totals[request, index] == 0 else None

    def _scale(self, request: int, index: int) -> float:
        """M / A for a residual, 1 for p; 0 where binary64 is not to decide."""
        total = float(self._totals[request, index])
        if not _in_range(total):
            return 0.0
        return 1.0 if index == self._judge.depth else TOTAL / total


def _in_range(total: float) -> bool:
    return cpu_verify.SMALLEST <= total <= cpu_verify.LARGEST


def _fold(totals: NDArray[np.float64]) -> float:
    """The sum over shards, in their order."""
    whole = 0.0
    for total in totals.tolist():
        whole += total
    return whole


def _folded(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """:func:`_fold` over the first axis of an array."""
    whole = np.zeros(totals.shape[1:])
    for total in totals:
        whole = whole + total
    return whole


def _pattern(number: float) -> int:
    return int(np.float64(number).view(np.int64))
