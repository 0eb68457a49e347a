"""Verdicts over any split equal those of the whole rows, bit for bit, near every threshold too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import shards as exact
from draftwire.exact import verify as exact_verify
from draftwire.exact.words import Address, Domain, KeyedWords, RequestKey, WordSource
from draftwire.kernels.cpu import verify_loops as cpu_verify
from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.cpu.verify_loops import target_weights
from draftwire.kernels.protocol import Round, Verdict
from draftwire.kernels.rows import QRow
from draftwire.kernels.shards import exact as shards_exact
from draftwire.kernels.shards import target as shards_target
from draftwire.kernels.shards import verify as shards_verify
from draftwire.kernels.shards.emulator import emulate
from draftwire.kernels.shards.shard import Shard, Steps, even_shards, shards_at
from draftwire.kernels.shards.verify import Place, Rounds
from draftwire.verifier.judge import decide
from draftwire.wire.registry import TOTAL
from tests.kernels.sharded import columns, splits, verified

COUNTS = (2, 3, 4, 7)


@dataclass(frozen=True)
class Scripted:
    """The words of each domain, given; then ones."""

    given: dict[Domain, tuple[int, ...]]

    def words(self, address: Address) -> Iterator[int]:
        yield from self.given.get(address.domain, ())
        while True:
            yield TOTAL - 1


@dataclass(frozen=True)
class Batch:
    rows: NDArray[np.float64]
    tokens: NDArray[np.int64]
    counts: NDArray[np.int32]
    places: list[Place]
    sources: Sequence[WordSource]

    def whole(self) -> list[tuple[int, int, str]]:
        """(accepted, token, refusal) of each round by the kernels on whole rows."""
        verdicts = [self.alone(request) for request in range(len(self.rows))]
        return [(v.accepted, -1 if v.token is None else v.token, _name(v.status)) for v in verdicts]

    def alone(self, request: int) -> Verdict:
        """One round by the kernels on whole rows, every decision taken."""
        place, tokens = self.places[request], self.tokens[request].tolist()
        this = Round(
            tokens,
            [QRow(self.rows.shape[2], None, row) for row in self.counts[request]],
            0,
            len(tokens) + 1,
            self.sources[request],
            place.generation,
            place.round,
            place.first_position,
        )
        return decide(CpuKernels(), self.rows[request], [this])[0]

    def sharded(self, split: Sequence[Shard]) -> list[tuple[int, int, str]]:
        found = verified(
            tuple(split), self.rows, self.tokens, self.counts, self.places, self.sources
        )
        columns_ = (found.accepted.tolist(), found.tokens.tolist(), found.status.tolist())
        return [(a, t, _name(s)) for a, t, s in zip(*columns_, strict=True)]


def _name(status: int) -> str:
    return RefusalCode(status).name if status else ""


def counts_of(rng: np.random.Generator, shape: tuple[int, ...], sparse: bool) -> NDArray[np.int32]:
    weights = rng.random(shape) ** rng.integers(1, 9)
    if sparse:
        weights *= rng.random(shape) < 0.4
    weights[..., int(rng.integers(shape[-1]))] += 1e-3
    counts = np.floor(weights / weights.sum(-1, keepdims=True) * TOTAL).astype(np.int32)
    at = counts.argmax(-1)[..., None]
    left = TOTAL - counts.sum(-1, keepdims=True, dtype=np.int64)
    np.put_along_axis(counts, at, np.take_along_axis(counts, at, -1) + left.astype(np.int32), -1)
    return counts


def batch_of(kind: int, count: int, size: int, depth: int, rng: np.random.Generator) -> Batch:
    """Random p's and q's: unrelated, p near q, p = q up to one id, sparse, with tiny weights."""
    counts = counts_of(rng, (count, depth, size), sparse=kind % 2 == 1)
    rows = rng.random((count, depth + 1, size)) ** 6
    if kind in (1, 2) and depth:
        rows[:, :depth] = counts / TOTAL * rng.choice([1.0, 3.0, 2.0**-40], (count, 1, 1))
        if kind == 2:
            rows[:, :depth, int(rng.integers(size))] *= 1 - 2.0**-30
    if kind == 3:
        rows *= rng.random(rows.shape) < 0.3
        rows[..., int(rng.integers(size))] += 1e-5
    if kind == 4:
        rows *= 10.0 ** rng.integers(-300, 0, rows.shape)
    if kind == 5:
        rows[:] = 0
        rows[..., int(rng.integers(size))] = 1.0
    picks = rng.integers(0, TOTAL, (count, depth, 1))
    tokens = (np.cumsum(counts, -1) <= picks).sum(-1).astype(np.int64)
    edges = (0, 1, TOTAL // 2, TOTAL - 1)
    sources = []
    for request in range(count):
        low, high, other = rng.integers(0, TOTAL, (3, 5)).tolist()
        first = edges[request % 4] if request % 3 == 0 else high[0]
        sources.append(
            Scripted({
                Domain.ACCEPTANCE: (first, *low[1:]),
                Domain.CORRECTION: tuple(high),
                Domain.BONUS: tuple(other),
                Domain.TARGET_ONLY: (first, *other[1:]),
            })
        )  # fmt: skip
    places = [Place(1, request + 1, 7) for request in range(count)]
    return Batch(rows, tokens, counts, places, sources)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2, 5, 17])
def test_verdicts_equal_those_of_the_whole_rows(size: int, depth: int) -> None:
    """7,200 rounds with 16,800 rows over 2, 3, 4 and 7 shards, the kinds of split in turn."""
    rng = np.random.default_rng(100 * size + depth)
    for kind in range(6):
        batch = batch_of(kind, 100, size, depth, rng)
        expected = batch.whole()
        for number in COUNTS:
            split = list(splits(size, number, rng))[(kind + number) % 3]
            assert batch.sharded(split) == expected


@pytest.mark.parametrize("kind", range(6))
def test_every_decision_taken_from_exact_integers(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bound so wide that binary64 decides nothing, the verdicts are the same."""
    rng = np.random.default_rng(kind)
    batches = [batch_of(kind, 12, size, depth, rng) for size in (3, 9) for depth in (0, 1, 3)]
    expected = [batch.whole() for batch in batches]
    monkeypatch.setattr(cpu_verify, "bound_of", lambda size: 2.0)
    for batch, verdicts in zip(batches, expected, strict=True):
        for number in COUNTS:
            for split in splits(batch.rows.shape[-1], number, rng):
                assert batch.sharded(split) == verdicts


def test_words_on_and_beside_every_edge() -> None:
    """Acceptance and residual edges that fall on words exactly: the tie is decided as in exact."""
    counts = np.array([8, 4, 4, 0, 0], np.int32) * (TOTAL // 16)
    p = np.array([4.0, 4, 2, 4, 2])
    batches = []
    for token in (0, 1, 2):
        for sixteenth in range(17):
            for delta in (-1, 0, 1):
                u = min(max(sixteenth * (TOTAL // 16) + delta, 0), TOTAL - 1)
                for tail in (0, TOTAL - 1):
                    given = dict.fromkeys(Domain, (u, tail, tail))
                    batches.append((token, Scripted(given)))
    tokens = np.array([[token] for token, _ in batches], np.int64)
    rows = np.tile(p, (len(batches), 2, 1))
    batch = Batch(
        rows,
        tokens,
        np.tile(counts, (len(batches), 1, 1)),
        [Place(1, 1, 3)] * len(batches),
        [source for _, source in batches],
    )
    expected = batch.whole()
    for cuts in [(1,), (2,), (3,), (5,), (0, 2), (2, 3), (1, 1), (1, 2, 3, 4), (0, 0, 5, 5)]:
        assert batch.sharded(shards_at(5, cuts)) == expected


@pytest.mark.parametrize(("size", "number"), [(129_280, 2), (262_144, 4)])
def test_real_vocabularies(size: int, number: int) -> None:
    """102 rows of each size: 34 rounds of depth 2, among them p within 2^-30 of q."""
    rng = np.random.default_rng(size)
    for turn in range(17):
        batch = batch_of(turn % 5, 2, size, 2, rng)
        split = list(splits(size, number, rng))[turn % 3]
        assert batch.sharded(split) == batch.whole()


def test_masses_far_from_one() -> None:
    """Sums under 2^-900, over 2^900 and subnormal: exact integers decide."""
    rng = np.random.default_rng(1)
    for scale in (5e-324, 1e-300, 1e306):
        batch = batch_of(0, 20, 5, 2, rng)
        rows = np.floor(batch.rows * 50) * scale
        rows[..., 0] = scale
        scaled = Batch(rows, batch.tokens, batch.counts, batch.places, batch.sources)
        for number in COUNTS:
            assert scaled.sharded(even_shards(5, number)) == scaled.whole()


def refused_batch() -> Batch:
    """Rounds that are refused, each for its own reason, between rounds that are not."""
    rng = np.random.default_rng(5)
    batch = batch_of(0, 9, 6, 2, rng)
    rows = batch.rows
    rows[1, 0, 5] = np.nan
    rows[2, 0, 0] = -1.0
    rows[3, 0] = 0.0
    rows[4, 2, 1] = np.inf  # the bonus row, looked at only when both drafts stand
    rows[5, 0, 2], rows[5, 0, 4] = -np.inf, -1.0
    rows[6, 0] *= -0.0
    batch.counts[7, 1, batch.tokens[7, 1]] = 0
    rows[8, :, 3] = -0.0
    return batch


def test_a_refused_round_touches_no_other_round() -> None:
    batch = refused_batch()
    expected = batch.whole()
    assert {refusal for _, _, refusal in expected} >= {
        "NON_FINITE", "NEGATIVE_WEIGHT", "ZERO_MASS", "ZERO_Q", "",
    }  # fmt: skip
    for cuts in [(3,), (0,), (6,), (1, 4), (5, 5, 5)]:
        assert batch.sharded(shards_at(6, cuts)) == expected


def test_a_rejection_where_p_equals_q_is_an_error_and_no_fallback() -> None:
    """Only a lying leader could reject there; the residual then says ZERO_RESIDUAL on all ranks."""
    counts = np.array([[[TOTAL // 4, TOTAL // 4, TOTAL // 2]]], np.int32)
    rows = np.tile(counts / TOTAL, (1, 2, 1))

    def rank(shard: Shard) -> Steps[tuple[int, int]]:
        own = Rounds(shard, columns(rows, shard), np.array([[1]]), columns(counts, shard))  # type: ignore[arg-type]
        judge = shards_verify._Judge(own, [Place(1, 1, 1)], [Scripted({})] if shard.leads else None)
        tokens, status = yield from judge.draw(np.array([[0, 0, 0]]))
        return int(tokens[0]), int(status[0])

    for found in emulate([rank(shard) for shard in even_shards(3, 2)]):
        assert found == (-1, 1 + list(RefusalCode).index(RefusalCode.ZERO_RESIDUAL))


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_target_weights_have_the_bits_of_the_whole_row(size: int) -> None:
    rng = np.random.default_rng(size)
    scores = (rng.standard_normal((8, size)) * 9).astype(np.float32)
    scores[1, : size // 2] = -np.inf
    scores[2] = -0.0
    expected = np.empty(scores.shape)
    for row, out in zip(scores, expected, strict=True):
        target_weights(row, out)
    for number in COUNTS:
        for split in splits(size, number, rng):
            own = [
                shards_target.weights_of(columns(scores, shard))  # type: ignore[arg-type]
                for shard in split
            ]
            np.testing.assert_array_equal(np.concatenate(emulate(own), axis=1), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_target_weights_of_a_refused_row_are_refused_by_the_verification(bad: float) -> None:
    scores = np.full((1, 4), bad if bad == -np.inf else 0.0, np.float32)
    scores[0, 2] = bad

    def rank(shard: Shard) -> Steps[str]:
        weights = yield from shards_target.weights_of(columns(scores, shard))  # type: ignore[arg-type]
        none = np.zeros((1, 0), np.int64), np.zeros((1, 0, shard.width), np.int32)
        rounds = Rounds(shard, weights[None], *none)
        sources = [KeyedWords(RequestKey(1))] if shard.leads else None
        found = yield from shards_verify.verify(rounds, [Place(1, 1, 1)], sources)
        return _name(int(found.status[0]))

    expected = "ZERO_MASS" if bad == -np.inf else "NON_FINITE"
    assert emulate([rank(shard) for shard in even_shards(4, 3)]) == [expected] * 3


def test_limbs_hold_every_mass() -> None:
    largest = (1 << 24) * TOTAL * int(np.finfo(np.float64).max) << shards_exact.SCALE_BITS
    for mass in (0, 1, largest):
        assert shards_exact.from_limbs(shards_exact.to_limbs(mass)) == mass
    row = np.array([5e-324, 1.0, 2.0**-1073, 1.7976931348623157e308])
    assert shards_exact.integers(row)[:3] == [1, 1 << 1074, 2]


def test_the_exact_form_over_shards_is_the_exact_form() -> None:
    """The plain-integer functions over shards against those on whole rows, same words."""
    rng = np.random.default_rng(9)
    source = KeyedWords(RequestKey(4))
    for turn in range(300):
        size = int(rng.integers(1, 9))
        p = rng.integers(0, 9, size)
        p[int(rng.integers(size))] += 1
        q = counts_of(rng, (size,), sparse=turn % 2 == 0)
        row = QRow(size, None, q).exact()
        token = int(rng.choice(row.ids))
        for split in splits(size, 3, rng):
            address = Address(1, turn, 1, Domain.CORRECTION)
            parts = [p[s.begin : s.end].tolist() for s in split]
            counts = [q[s.begin : s.end].tolist() for s in split]
            same = exact_verify.target(p.tolist(), source.words(address))
            assert exact.target(parts, source, address) == same
            drawn = exact_verify.draw(row, source.words(address))
            assert exact.draw(counts, source, address) == drawn
            stands = exact_verify.accept(p.tolist(), row, token, source.words(address))
            assert exact.accept(parts, counts, token, source, address) is stands
            if any(exact.residuals(p.tolist(), q.tolist(), int(p.sum()))):
                fixed = exact_verify.correction(p.tolist(), row, source.words(address))
                assert exact.correction(parts, counts, source, address) == fixed


def test_arrays_that_do_not_fit_are_refused() -> None:
    shard = Shard(4, 0, 2, 0, 2)
    good = {
        "rows": np.ones((1, 2, 2)),
        "tokens": np.array([[3]]),
        "counts": np.ones((1, 1, 2), np.int32),
    }
    Rounds(shard, **good)  # type: ignore[arg-type]
    for name, wrong in [
        ("rows", np.ones((1, 2, 3))),
        ("rows", np.ones((1, 2, 2), np.float32)),
        ("tokens", np.array([[4]])),
        ("tokens", np.array([[-1]])),
        ("counts", np.ones((1, 2, 2), np.int32)),
    ]:
        with pytest.raises(ArithmeticRefusalError):
            Rounds(shard, **{**good, name: wrong})  # type: ignore[arg-type]
    with pytest.raises(ArithmeticRefusalError):
        next(shards_verify.verify(Rounds(shard, **good), [Place(1, 1, 1)], None))  # type: ignore[arg-type]


def test_only_the_leader_reads_words() -> None:
    """No other rank holds a key, so none could decide by itself (T34)."""
    batch = batch_of(0, 20, 6, 2, np.random.default_rng(3))
    split = even_shards(6, 3)
    ranks = [
        shards_verify.verify(
            Rounds(shard, columns(batch.rows, shard), batch.tokens, columns(batch.counts, shard)),  # type: ignore[arg-type]
            batch.places,
            batch.sources if shard.leads else None,
        )
        for shard in split
    ]
    results = emulate(ranks)
    assert all(result.tokens.tolist() == results[0].tokens.tolist() for result in results)
    assert list(islice(batch.sources[0].words(Address(1, 1, 1, Domain.BONUS)), 1))


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_a_greedy_target_is_a_point_on_the_lowest_of_the_largest(size: int) -> None:
    rng = np.random.default_rng(size)
    scores = (np.round(rng.standard_normal((9, size)) * 2)).astype(np.float32)
    scores[1] = -0.0
    scores[1, size // 2 :] = 0.0
    scores[2, size - 1] = -np.inf
    for split in [*splits(size, 3, rng), *splits(size, 2, rng)]:
        parts = [
            shards_target.point_of(shard, columns(scores, shard))  # type: ignore[arg-type]
            for shard in split
        ]
        whole = np.concatenate(emulate(parts), axis=1)
        if size > 1:
            assert whole.argmax(axis=1).tolist() == scores.argmax(axis=1).tolist()
            assert (whole.sum(axis=1) == 1).all()
    scores[0, 0], scores[1] = np.nan, -np.inf
    whole = np.concatenate(
        emulate([shards_target.point_of(s, columns(scores, s)) for s in even_shards(size, 2)]),  # type: ignore[arg-type]
        axis=1,
    )
    assert np.isnan(whole[0]).all() and not whole[1].any()
