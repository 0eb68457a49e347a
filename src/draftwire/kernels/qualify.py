"""How far a backend is from the normative arithmetic, measured: counts, draws, decisions, residual.

Counts and draws are held against :mod:`draftwire.exact` to the bit. Decisions are held against the
exact rational edges of A18-A20, at words on both sides of every edge: one that is taken must be the
exact one, one within the bound must say UNDECIDED, and how far from the edge that still happens is
reported. p and the residual mass are held against the softmax of the same logits in 40 digits.
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
from draftwire.kernels.backend import (
    UNDECIDED,
    Backend,
    Draws,
    QRows,
)
from draftwire.kernels.cpu.target_loops import target_weights
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
    residual_distance: float = 0.0
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


def measure(backend: Backend[Any], rows: Rows, seed: int) -> Measured:
    """Hold one backend against the exact layer on rows of one kind, under three policies."""
    rng = np.random.default_rng(seed)
    number, vocab = rows.target.shape
    found = Measured(rows.name, vocab)
    targets = [_Target(row) for row in rows.target]
    for policy in POLICIES:
        expected = [_exact_counts(row, policy) for row in rows.draft]
        q, _ = backend.quantise(backend.from_host(rows.draft), policy)
        words = np.asarray(rng.integers(0, TOTAL, size=number))
        drawn = backend.to_host(backend.draw(q, backend.from_host(words)))
        ids = None if q.ids is None else backend.to_host(q.ids)
        counts = backend.to_host(q.counts)
        found.rows += number
        found.draws += number
        for index, due in enumerate(expected):
            own = _ids_and_counts(ids, counts, index)
            found.counts_differing += own != (due.ids, due.counts)
            token = exact_verify.draw(due, iter([int(words[index])]))
            found.draws_differing += token != int(drawn[index])
            _residual(backend, rows.target[index], q, index, targets[index], due, found)
            if due.of(int(drawn[index])):
                at = (index, int(drawn[index]), int(rng.integers(SPAN)))
                _decide(backend, rows.target[index], q, at, targets[index], due, found)
    found.p_distance = _p_distance(rows.target[0], targets[0])
    return found


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


def _ids_and_counts(
    ids: NDArray[Any] | None, counts: NDArray[Any], index: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    used = np.flatnonzero(counts[index])
    places = used if ids is None else ids[index][used]
    return tuple(places.tolist()), tuple(counts[index][used].tolist())


def _exact_counts(row: NDArray[np.float32], policy: ProposalPolicy) -> Counts:
    return exact.quantise(
        row.tolist(),
        policy.temperature,
        top_k=policy.top_k,
        top_p=policy.top_p,
        min_p=policy.min_p,
        limit=policy.support,
    )


def _one(q: QRows[Any], index: int, copies: int, axes: int) -> QRows[Any]:
    """Row ``index`` of q, ``copies`` times; axes 2: (copies, W), 3: (copies, 1, W)."""

    def repeat(array: Any) -> Any:
        row = array[index : index + 1]
        # torch repeats along each axis, NumPy along one.
        made = row.repeat(copies, 1) if hasattr(row, "unbind") else row.repeat(copies, 0)
        return made if axes == 2 else made.reshape(copies, 1, -1)

    return QRows(q.vocab_size, None if q.ids is None else repeat(q.ids), repeat(q.counts))


def _residual(
    backend: Backend[Any],
    logits: NDArray[np.float32],
    q: QRows[Any],
    index: int,
    p: _Target,
    due: Counts,
    found: Measured,
) -> None:
    mass = backend.residual_mass(backend.from_host(logits[None]), _one(q, index, 1, 2))
    exactly = Fraction(sum(p.residual(due)), p.mass * TOTAL)
    away = abs(Fraction(float(backend.to_host(mass)[0])) - exactly)
    found.residual_distance = max(found.residual_distance, float(away))


def _decide(
    backend: Backend[Any],
    logits: NDArray[np.float32],
    q: QRows[Any],
    at: tuple[int, int, int],
    p: _Target,
    due: Counts,
    found: Measured,
) -> None:
    """One round of one draft at words around its acceptance edge; draws at one word."""
    index, token, second = at
    ours, theirs = p.weights[token] * TOTAL, due.of(token) * p.mass
    edge = min(ours * SPAN // theirs, SPAN - 1)
    firsts = sorted({min(max(edge + offset, 0), SPAN - 1) for offset in OFFSETS})
    copies = len(firsts)
    draws = Draws(
        backend.from_host(np.array(firsts)[:, None]),
        backend.from_host(np.full((copies, 1), second)),
        backend.from_host(np.full(copies, second)),
    )
    rows = np.broadcast_to(logits, (copies, 2, logits.size)).copy()
    made = backend.verify(
        backend.from_host(rows),
        backend.from_host(np.full((copies, 1), token)),
        _one(q, index, copies, 3),
        draws,
    )
    accepted, tokens, status = map(backend.to_host, (made.accepted, made.tokens, made.status))
    bonus = _located(p.edges, second)
    left = list(accumulate(p.residual(due)))
    correction = _located(left, second) if left[-1] else None
    for place, first in enumerate(firsts):
        found.decisions += 1
        if status[place] == UNDECIDED:
            found.undecided += 1
            found.reach = max(found.reach, _reach(first, ours, theirs, bonus, correction))
            continue
        stands = (first + 1) * theirs <= ours * SPAN
        falls = first * theirs >= ours * SPAN
        right = bonus if stands else correction
        known = stands or falls
        sound = status[place] == 0 and known and accepted[place] == stands
        found.wrong += not (sound and right == tokens[place])


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
