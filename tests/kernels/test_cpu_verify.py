"""Every decision of the CPU kernels equals the exact layer's, near ties above all (A17-A20, A22).

Numbers U are chosen, not drawn: each spells a point next to a threshold or an edge, so close that
binary64 cannot tell the sides apart, and words go on past the two that the kernels read.
"""

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest

from draftwire.exact import quantise as exact_quantise
from draftwire.exact import verify as exact
from draftwire.exact.counts import TOTAL, Counts
from draftwire.exact.verify import Verdict
from draftwire.exact.words import WORD_BITS, Address, Domain, KeyedWords, RequestKey
from draftwire.kernels.cpu import verify_loops as cpu_verify
from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.protocol import Round
from draftwire.kernels.rows import QRow
from draftwire.verifier.judge import judge

SIZES = (1, 2, 3, 31, 32, 33, 513, 1000)
LAST = 1 - Fraction(1, 2**192)  # the largest number of this file
AT = {"generation": 1, "round": 1, "first_position": 0}


def digits(u):
    while True:
        u *= 1 << WORD_BITS
        word = u.numerator // u.denominator
        yield word
        u -= word


class Numbers:
    """One number U for each domain; at every position."""

    def __init__(self, acceptance=Fraction(0), after=Fraction(0)):
        self._numbers = {
            Domain.ACCEPTANCE: acceptance,
            Domain.CORRECTION: after,
            Domain.BONUS: after,
        }

    def words(self, address: Address):
        return digits(self._numbers[address.domain])


def verify(rows, tokens, q, source, *, generation, round, first_position):
    """The kernels' verdict on weights, every decision taken, in the exact layer's words."""
    this = Round(tokens, q, 0, len(rows), source, generation, round, first_position)
    (judgement,) = judge(CpuKernels(), rows, [this])
    if judgement.refusal is not None:
        raise judgement.refusal
    accepted = judgement.accepted
    outcome = "bonus" if accepted == len(tokens) else "correction"
    return Verdict(accepted, judgement.tokens[accepted], outcome)


class Stream:
    """The same words at every address."""

    def __init__(self, u):
        self._u = u

    def words(self, address):
        return digits(self._u)


def target(p, source, turn=1):
    """A token from p alone; source: a number U, or words by address."""
    source = Stream(source) if isinstance(source, Fraction) else source
    (judgement,) = judge(CpuKernels(), p[None], [Round((), (), 0, 1, source, 3, turn, 17)])
    if judgement.refusal is not None:
        raise judgement.refusal
    return judgement.tokens[0]


@pytest.fixture
def calls(monkeypatch):
    """How often each decision was left to the exact layer."""
    counted = {"accept": 0, "correction": 0, "target": 0}
    for name in counted:
        original = getattr(exact, name)

        def spy(*args, name=name, original=original, **kwargs):
            counted[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(exact, name, spy)
    return counted


def weights(size, rng):
    """Rows of p that sums in binary64 get wrong."""
    normal = rng.standard_normal(size)
    yield np.ones(size)
    yield np.full(size, 0.1)
    yield np.exp(normal * 3)
    yield np.exp(-np.arange(size, dtype=float))
    yield np.where(np.arange(size) == size // 2, 1.0, 0.0)
    yield np.where(np.arange(size) == 0, 1.0, 2.0**-53)  # lost when added one by one to the 1
    yield np.where(np.arange(size) == size - 1, 1.0, 1e-300)
    yield np.where(np.arange(size) % 3 == 0, np.exp(normal), 0.0)
    yield np.full(size, 5e-324)
    yield np.full(size, 1e308)
    yield np.exp(np.minimum(normal * 200 - 100, 700))
    yield np.where(np.arange(size) % 2, -0.0, 0.3)
    yield 1 + rng.integers(0, 3, size) * 2.0**-52


def proposals(size, p, rng):
    """q's far from p, near it, equal to it, and of other support."""
    fine = np.exp(rng.standard_normal(size) * 2)
    for row in (
        np.ones(size),
        fine,
        np.where(np.arange(size) == rng.integers(size), 1.0, 0.0),
        np.where(p > 0, 0.0, 1.0),
        np.where(rng.random(size) < 0.1, fine, 0.0),
    ):
        # Each costs the exact layer seconds at large V: there, a part of them a row of p.
        if row.any() and (size < 100 or rng.random() < 0.4):
            yield counts_of(row)
    if size < 100 or rng.random() < 0.4:
        yield counts_of(p)


def counts_of(row):
    tickets = exact_quantise.allocate(exact_quantise.integers(row.tolist()))
    ids = tuple(v for v, count in enumerate(tickets) if count)
    return Counts(len(tickets), TOTAL, ids, tuple(tickets[v] for v in ids))


def rows_of(counts):
    return QRow.of_counts(counts, dense=True), QRow.of_counts(counts, dense=False)


def beside(value):
    """Numbers in [0, 1) at and next to ``value``: one unit of the 48 bits, and far less, away."""
    value = Fraction(value)
    steps = [Fraction(1, 1 << bits) for bits in (20, 48, 60, 90)]
    around = [value + sign * step for step in steps for sign in (-1, 1)]
    if not value.denominator & (value.denominator - 1):
        around.append(value)  # a tie that ends
    return [u for u in around if 0 <= u < 1]


def ended(u):
    """``u`` cut after eight words: no tie of it with a fraction goes on for ever."""
    return Fraction(u.numerator * 2**192 // u.denominator, 2**192)


def both(p, counts, token, numbers):
    """The verdict of the exact layer, found to be that of the kernels, for one draft."""
    exact_row = exact_quantise.integers(p.tolist())
    expected = exact.verify([exact_row] * 2, [(token, counts)], numbers, **AT)
    rows = np.stack([p, p])
    for q in rows_of(counts):
        assert verify(rows, [token], [q], numbers, **AT) == expected
    return expected


@pytest.mark.parametrize("size", SIZES)
def test_acceptance_equals_exact_beside_its_threshold(size):
    rng = np.random.default_rng(size)
    for p in weights(size, rng):
        exact_row = exact_quantise.integers(p.tolist())
        mass = sum(exact_row)
        for counts in proposals(size, p, rng):
            for token in {counts.ids[0], counts.ids[-1], int(rng.choice(counts.ids))}:
                ratio = Fraction(exact_row[token] * TOTAL, counts.of(token) * mass)
                for u in beside(min(ratio, Fraction(1))):
                    after = Fraction(int(rng.integers(1 << 30)), 1 << 30)
                    verdict = both(p, counts, token, Numbers(ended(u), after))
                    assert (verdict.accepted == 1) == (ended(u) < ratio)


@pytest.mark.parametrize("size", SIZES)
def test_correction_equals_exact_beside_every_kind_of_edge(size):
    rng = np.random.default_rng(size + 1)
    for p in weights(size, rng):
        exact_row = exact_quantise.integers(p.tolist())
        mass = sum(exact_row)
        for counts in proposals(size, p, rng):
            q = counts.dense()
            residual = [max(a * TOTAL - c * mass, 0) for a, c in zip(exact_row, q, strict=True)]
            rejected = [v for v in counts.ids if exact_row[v] * TOTAL < LAST * q[v] * mass]
            if not rejected:
                continue
            edges = list(accumulate(residual))
            some = {edges[0], edges[-1], edges[int(rng.integers(size))]}
            points = {ended(u) for edge in some for u in beside(Fraction(edge, edges[-1]))}
            for u in points | {Fraction(0)}:
                numbers = Numbers(LAST, u)
                token = both(p, counts, rejected[0], numbers).token
                assert residual[token] > 0


@pytest.mark.parametrize("size", SIZES)
def test_target_equals_exact_beside_every_kind_of_edge(size):
    rng = np.random.default_rng(size + 2)
    for p in weights(size, rng):
        exact_row = exact_quantise.integers(p.tolist())
        edges = list(accumulate(exact_row))
        some = {edges[0], edges[-1], *(edges[int(rng.integers(size))] for _ in range(4))}
        points = {ended(u) for edge in some for u in beside(Fraction(edge, edges[-1]))}
        for u in points | {Fraction(0)}:
            token = target(p, u)
            assert token == exact.target(exact_row, digits(u))
            assert p[token] > 0


def test_the_exact_layer_decides_what_lies_within_the_bound_and_nothing_else(calls):
    p = np.full(1000, 0.1)
    counts = counts_of(np.where(np.arange(1000) < 10, 1.0, 0.0))
    q = QRow.of_counts(counts, dense=False)
    rows = np.stack([p, p])
    ratio = Fraction(TOTAL, 1000 * counts.of(0))
    edge = Fraction(1, 2)  # of the residual, flat over the 990 other ids

    def run(acceptance, after):
        for name in calls:
            calls[name] = 0
        verify(rows, [0], [q], Numbers(acceptance, after), **AT)
        return tuple(calls.values())

    near, far = Fraction(1, 1 << 60), Fraction(1, 1 << 30)
    inside = edge + Fraction(1, 1980)  # the middle of an id's interval
    assert run(ratio + far, inside) == (0, 0, 0)
    assert run(ratio - far, inside) == (0, 0, 0)
    # What follows an exact decision in its round is exact as well.
    assert run(ratio + near, inside) == (1, 1, 0)
    assert run(ratio - near, inside) == (1, 0, 1)
    assert run(ratio + far, edge + near) == (1, 1, 0)
    assert run(ratio + far, edge - near) == (1, 1, 0)
    assert run(ratio + far, edge + far) == (0, 0, 0)
    assert run(ratio - far, edge + near) == (0, 0, 1)
    assert run(ratio - far, edge + far) == (0, 0, 0)


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-1074, 2.0**1000])
def test_the_exact_layer_decides_for_masses_out_of_range(calls, scale):
    p = np.full(8, 1.0) * scale
    assert target(p, Fraction(5, 16)) == 2
    assert calls["target"] == 1


def test_without_its_bound_the_kernel_would_decide_wrongly(monkeypatch):
    """The rows and numbers of this file do catch a rounded decision."""
    monkeypatch.setattr(cpu_verify, "bound_of", lambda size: 0.0)
    rng = np.random.default_rng(5)
    wrong = 0
    for size in SIZES:
        for p in weights(size, rng):
            exact_row = exact_quantise.integers(p.tolist())
            middle = Fraction(sum(exact_row[: size // 2 + 1]), sum(exact_row))
            for u in {ended(u) for u in beside(middle)}:
                wrong += target(p, u) != exact.target(exact_row, digits(u))
    assert wrong > 0


@pytest.mark.parametrize("size", [1, 7, 511, 512, 520, 1023, 5000])
def test_sums_and_residuals_stay_within_a_half_of_the_bound(size):
    rng = np.random.default_rng(size)
    bound = Fraction(cpu_verify.bound_of(size)) / 2
    for p in weights(size, rng):
        mass = sum(Fraction(value) for value in p.tolist())
        sums = np.empty(-(-size // cpu_verify.BLOCK))
        total = cpu_verify.block_sums(p, sums)
        if not cpu_verify.SMALLEST <= total <= cpu_verify.LARGEST:
            continue
        assert abs(Fraction(total) - mass) <= bound * mass
        tickets = rng.multinomial(TOTAL, np.full(size, 1 / size)).astype(np.int32)
        out = np.empty(size)
        cpu_verify.residual_dense(p, TOTAL / total, tickets, out)
        wrong = sum(
            abs(Fraction(value) - max(Fraction(a) * TOTAL / mass - c, 0))
            for value, a, c in zip(out.tolist(), p.tolist(), tickets.tolist(), strict=True)
        )
        assert wrong <= bound * TOTAL


def test_many_random_rounds_equal_exact():
    rng = np.random.default_rng(31)
    for turn in range(1500):
        size, depth = int(rng.integers(1, 9)), int(rng.integers(1, 4))
        scale = rng.choice([0.5, 3.0, 200.0])
        rows = np.exp(np.minimum(rng.standard_normal((depth + 1, size)) * scale, 700))
        rows[:, 1:][rng.random((depth + 1, size - 1)) < 0.3] = 0.0
        rows[:, 0] = np.maximum(rows[:, 0], 1e-300)
        proposal = []
        for _ in range(depth):
            sparse = np.where(rng.random(size) < 0.4, 0.0, np.exp(rng.standard_normal(size)))
            sparse[int(rng.integers(size))] += 1
            counts = counts_of(sparse)
            proposal.append((int(rng.choice(counts.ids)), counts))
        source = KeyedWords(RequestKey(turn))
        exact_rows = [exact_quantise.integers(row.tolist()) for row in rows]
        at = {"generation": 3, "round": turn, "first_position": 17}
        expected = exact.verify(exact_rows, proposal, source, **at)
        for dense in (True, False):
            q = [QRow.of_counts(counts, dense=dense) for _, counts in proposal]
            assert verify(rows, [token for token, _ in proposal], q, source, **at) == expected
        address = Address(3, turn, 17, Domain.TARGET_ONLY)
        assert target(rows[0], source, turn) == exact.target(exact_rows[0], source.words(address))


def test_d4_a_greedy_drafter_on_a_token_of_no_mass():
    p = np.array([3.0, 0.0, 5.0])
    counts = Counts(3, TOTAL, (1,), (TOTAL,))
    for part in range(64):
        u = Fraction(part, 64)
        expected = Verdict(0, 0 if u < Fraction(3, 8) else 2, "correction")
        assert both(p, counts, 1, Numbers(Fraction(0), u)) == expected


def test_d5_word_zero_and_every_edge():
    p = np.array([0.0, 2.0, 0.0, 0.0, 2.0, 0.0])
    counts = counts_of(np.array([4.0, 1.0, 1.0, 1.0, 1.0, 0.0]))
    for edge in accumulate(counts.counts):
        for u in [*beside(Fraction(edge, TOTAL)), Fraction(0), Fraction(1, 2)]:
            verdict = both(p, counts, 0, Numbers(Fraction(0), u))
            assert verdict == Verdict(0, 1 if u < Fraction(1, 2) else 4, "correction")


def test_e48_p_equal_to_q_never_rejects():
    for dense in ([1.0], [1.0, 1.0], [1.0, 3.0, 4.0], [0.0, 5.0, 11.0]):
        p = np.array(dense)
        counts = counts_of(p)
        for token in counts.ids:
            assert both(p / 2, counts, token, Numbers(LAST, Fraction(1, 3))).accepted == 1


def test_g24_an_id_without_mass_is_never_emitted():
    p = np.array([3.0, 0.0, 5.0])
    rows = np.stack([p] * 3)
    for counts in (counts_of(np.ones(3)), counts_of(np.array([1.0, 9.0, 1.0]))):
        for first in range(3):
            for u in [*beside(Fraction(3, 8)), Fraction(0), LAST]:
                for q in rows_of(counts):
                    verdict = verify(rows, [first, 1], [q, q], Numbers(u, u), **AT)
                    assert verdict.token != 1
                    assert verdict.accepted < 2 and (first != 1 or verdict.accepted == 0)


def test_g25_one_legal_token_is_always_the_token(calls):
    p = np.array([0.0] * 600 + [1.0] + [0.0] * 10)
    rows = np.stack([p] * 3)
    flat = QRow.of_counts(counts_of(np.ones(611)), dense=True)
    point = QRow.of_counts(Counts(611, TOTAL, (600,), (TOTAL,)), dense=False)
    for part in range(1, 64):
        numbers = Numbers(Fraction(part, 64), Fraction(part, 64))
        assert verify(rows, [5, 600], [flat, flat], numbers, **AT) == Verdict(0, 600, "correction")
        assert verify(rows, [600, 600], [point, flat], numbers, **AT) == Verdict(2, 600, "bonus")
    assert not any(calls.values())


def test_p_as_processed_is_never_written_to():
    rng = np.random.default_rng(0)
    p = np.exp(rng.standard_normal(700))
    counts = counts_of(np.exp(rng.standard_normal(700)))
    rows = np.stack([p, p])
    rows.flags.writeable = False
    for q in rows_of(counts):
        before = q.counts.tobytes()
        q.counts.flags.writeable = False
        numbers = Numbers(1 - Fraction(1, 1 << 40), Fraction(1, 3))
        verify(rows, [counts.ids[0]], [q], numbers, **AT)
        assert q.counts.tobytes() == before  # D7: nothing scales q in place
