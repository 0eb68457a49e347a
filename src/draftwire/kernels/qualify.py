"""How far kernels are from the normative arithmetic, measured: counts, draws, decisions, p.

Counts and draws are held against :mod:`draftwire.exact` to the bit. Decisions are held against the
exact rational edges of A18-A20, at words on both sides of every edge: one that is taken must be the
exact one, one within the bound must say UNDECIDED, and how far from the edge that still happens is
reported. p is held against the softmax of the same logits in 40 digits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftwire.exact import quantise as exact
from draftwire.exact import verify as exact_verify
from draftwire.exact.counts import Counts
from draftwire.exact.words import WORD_BITS, Address, Domain
from draftwire.kernels.cpu.verify_loops import target_weights
from draftwire.kernels.protocol import OK, UNDECIDED, Kernels, Round, Verdict
from draftwire.kernels.rows import QRow
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

SPAN: Final = 1 << 48
DIGITS: Final = 40
OFFSETS: Final = (*(-(1 << n) for n in range(44, -1, -2)), 0, *(1 << n for n in range(0, 45, 2)))
POLICIES: Final = (
    ProposalPolicy(Layout.DENSE, 1, 1.0),
    ProposalPolicy(Layout.SPARSE, 1, 1.0, support=32),
    ProposalPolicy(Layout.DENSE, 1, 0.75, top_k=50, top_p=TOTAL * 95 // 100, min_p=TOTAL >> 9),
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one kind: target and draft logits, both binary32 (N, V)."""

    name: str
    target: NDArray[np.float32]
    draft: NDArray[np.float32]


@dataclass(slots=True)
class Measured:
    """What was found on rows of one kind.

    ``wrong`` decisions and differing rows are faults; ``reach`` is how far from an edge, as a
    probability, a decision was still left to the host; distances are absolute.
    """

    name: str
    vocab: int
    rows: int = 0
    counts_differing: int = 0
    draws: int = 0
    draws_differing: int = 0
    decisions: int = 0
    wrong: int = 0
    undecided: int = 0
    reach: float = 0.0
    p_distance: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing differs by a bit and no decision is another than the exact one."""
        return not (self.counts_differing or self.draws_differing or self.wrong)


def adversarial(vocab: int, huge: int, rows: int, seed: int) -> Iterator[Rows]:
    """Rows that kernels get wrong, ``rows`` of each kind; one of the huge vocabulary."""
    rng = np.random.default_rng(seed)

    def near(logits: NDArray[np.floating[Any]], by: float) -> NDArray[np.float32]:
        return (logits + rng.standard_normal(logits.shape) * by).astype(np.float32)

    shape = (rows, vocab)
    column = np.arange(vocab)
    normal = rng.standard_normal(shape)
    kinds: dict[str, NDArray[Any]] = {
        "flat": np.zeros(shape),
        "peaked": normal + np.where(column == vocab // 2, 24.0, 0.0),
        "near-tied": 1 + 2.0**-23 * rng.integers(0, 3, shape),
        "tiny p": np.where(column < vocab // 2, normal, normal - 60.0),
        "random": normal * 3,
    }
    for name, logits in kinds.items():
        target = logits.astype(np.float32)
        yield Rows(name, target, near(logits, 0.0 if name == "near-tied" else 0.6))
    legal = np.where(column == rng.integers(0, vocab, (rows, 1)), 0.0, -np.inf)
    yield Rows("one legal id", legal.astype(np.float32), normal.astype(np.float32))
    if huge:
        wide = rng.standard_normal((1, huge)) * 2.5
        yield Rows("huge V", wide.astype(np.float32), near(wide, 0.6))


def measure(kernels: Kernels[Any], rows: Rows, seed: int) -> Measured:
    """Hold kernels against the exact layer on rows of one kind, under three policies."""
    rng = np.random.default_rng(seed)
    number, vocab = rows.target.shape
    found = Measured(rows.name, vocab)
    targets = [_Target(row) for row in rows.target]
    for policy in POLICIES:
        q, _ = kernels.quantise(kernels.from_host(rows.draft), policy)
        words = np.asarray(rng.integers(0, TOTAL, size=number))
        drawn = kernels.draw(q, words).tolist()
        found.rows += number
        found.draws += number
        for index, row in enumerate(kernels.host_rows(q)):
            due, token = _exact_counts(rows.draft[index], policy), drawn[index]
            found.counts_differing += row.exact() != due
            expected = exact_verify.draw(due, iter([int(words[index])]))
            found.draws_differing += token != expected
            if token in due.ids:
                draft = _Draft(token, row, due, int(rng.integers(SPAN)))
                _decide(kernels, rows.target[index], draft, targets[index], found)
    found.p_distance = _p_distance(rows.target[0], targets[0])
    return found


@dataclass(frozen=True, slots=True)
class _Draft:
    """A draft, its q as computed and as due, and 48 bits of U for the token behind it."""

    token: int
    row: QRow
    due: Counts
    second: int


class _Words:
    """The words of one round: 48 bits of U for the acceptance, and others for what is drawn."""

    def __init__(self, first: int, second: int) -> None:
        self._first, self._second = first, second

    def words(self, address: Address) -> Iterator[int]:
        """The first two words of an address."""
        bits = self._first if address.domain is Domain.ACCEPTANCE else self._second
        return iter((bits >> WORD_BITS, bits & (TOTAL - 1)))


class _Target:
    """p of a row as exact integers, and the cumulative edges of its categorical."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        weights: NDArray[np.float64] = np.empty(logits.shape)
        target_weights(logits, weights)
        self.weights = exact.integers(weights.tolist())
        self.edges = list(accumulate(self.weights))
        self.mass = self.edges[-1]

    def residual(self, q: Counts) -> list[int]:
        """max(p - q, 0) as exact integers, of ``mass * 2^24``."""
        left = [weight * TOTAL for weight in self.weights]
        for token, count in zip(q.ids, q.counts, strict=True):
            left[token] = max(left[token] - count * self.mass, 0)
        return left


def _exact_counts(row: NDArray[np.float32], policy: ProposalPolicy) -> Counts:
    return exact.quantise(
        row.tolist(),
        policy.temperature,
        top_k=policy.top_k,
        top_p=policy.top_p,
        min_p=policy.min_p,
        limit=policy.support,
    )


def _decide(
    kernels: Kernels[Any],
    logits: NDArray[np.float32],
    draft: _Draft,
    p: _Target,
    found: Measured,
) -> None:
    """Rounds of one draft at words around its acceptance edge; one word for what is drawn."""
    ours, theirs = p.weights[draft.token] * TOTAL, draft.due.of(draft.token) * p.mass
    edge = min(ours * SPAN // theirs, SPAN - 1)
    firsts = sorted({min(max(edge + offset, 0), SPAN - 1) for offset in OFFSETS})
    rounds = [
        Round((draft.token,), (draft.row,), 2 * at, 2, _Words(first, draft.second), 1, 1, 0)
        for at, first in enumerate(firsts)
    ]
    scores = np.broadcast_to(logits, (2 * len(firsts), logits.size)).copy()
    verdicts = kernels.verify(kernels.from_host(scores), rounds)
    bonus = _located(p.edges, draft.second)
    left = list(accumulate(p.residual(draft.due)))
    correction = _located(left, draft.second) if left[-1] else None
    for first, verdict in zip(firsts, verdicts, strict=True):
        found.decisions += 1
        stands = (first + 1) * theirs <= ours * SPAN
        falls = first * theirs >= ours * SPAN
        if verdict.status == UNDECIDED:
            found.undecided += 1
            found.reach = max(found.reach, _reach(first, ours, theirs, bonus, correction))
            found.wrong += verdict.accepted == 1 and not stands
            continue
        due = Verdict(int(stands), bonus if stands else correction, OK)
        found.wrong += verdict != due or not (stands or falls)


def _located(edges: list[int], first: int) -> int | None:
    """The id that the first 48 bits of U decide on, None where they leave two."""
    mass = edges[-1]
    low = bisect_right(edges, first * mass // SPAN)
    high = bisect_left(edges, -(-(first + 1) * mass // SPAN))
    return low if low == high else None


def _reach(first: int, ours: int, theirs: int, bonus: int | None, correction: int | None) -> float:
    """How far from the acceptance edge an undecided word was; 0 where a draw was the reason."""
    if bonus is None or correction is None:
        return 0.0
    return float(abs(Fraction(first, SPAN) - Fraction(ours, theirs)))


def _p_distance(logits: NDArray[np.float32], p: _Target) -> float:
    """Total variation between A24's p and the softmax of the logits in 40 digits."""
    largest = Decimal(float(logits.max()))
    with localcontext() as context:
        context.prec = DIGITS
        weights = [(Decimal(float(logit)) - largest).exp() for logit in logits.tolist()]
        mass, own = sum(weights), Decimal(p.mass)
        pairs = zip(weights, p.weights, strict=True)
        return float(sum(abs(w / mass - Decimal(a) / own) for w, a in pairs) / 2)
