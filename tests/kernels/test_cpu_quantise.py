"""Counts and draws of the CPU kernels equal those of the exact layer, bit for bit (A1-A10, A16)."""

import sys
from itertools import accumulate

import numpy as np
import pytest

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import quantise as exact
from draftwire.exact.counts import TOTAL, Counts
from draftwire.exact.verify import draw as exact_draw
from draftwire.kernels import cpu
from draftwire.kernels.cpu import quantise_loops as cpu_quantise
from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.protocol import NO_TOKEN
from draftwire.kernels.rows import QRow
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

from .rows_of_logits import SIZES, adversarial

OFF = {"top_k": 0, "top_p": TOTAL, "min_p": 0, "support": 0}
RESTRICTIONS = [
    {},
    {"support": 1},
    {"support": 4},
    {"support": 32},
    {"support": 1000},
    {"top_k": 1},
    {"top_k": 5, "support": 3},
    {"top_k": 500},
    {"top_p": 1},
    {"top_p": TOTAL // 2},
    {"top_p": TOTAL - 1},
    {"top_p": TOTAL * 9 // 10, "support": 8},
    {"min_p": 1},
    {"min_p": TOTAL // 20, "support": 16},
    {"min_p": TOTAL},
    {"top_k": 40, "top_p": TOTAL * 95 // 100, "min_p": TOTAL // 100, "support": 8},
]
TEMPERATURES = [0.0, 1.0, float(np.float32(0.7)), float(np.float32(0.1)), 2.0**14, 2.0**-14]


def policy(temperature, restrictions):
    settings = OFF | restrictions
    layout = Layout.SPARSE if settings["support"] else Layout.DENSE
    return ProposalPolicy(layout, 5, temperature, **settings)


def exact_counts(logits, given):
    return exact.quantise(
        logits.tolist(),
        given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        min_p=given.min_p,
        limit=given.support,
    )


def check(logits, given):
    before = logits.copy()
    row, expected = cpu.quantise(logits, given), exact_counts(logits, given)
    assert row.exact() == expected
    assert (row.ids is None) == (given.layout is Layout.DENSE)
    assert row.counts.dtype == np.int32 and row.counts.flags.c_contiguous
    assert row.ids is None or row.ids.dtype == np.int32
    assert logits.tobytes() == before.tobytes()
    return row, expected


@pytest.mark.parametrize("size", SIZES)
def test_counts_equal_the_exact_ones(size):
    rng = np.random.default_rng(size)
    turn = 0
    for logits in adversarial(size, rng):
        for temperature in TEMPERATURES:
            # All combinations at small V; at large V each row meets every restriction in some turn.
            some = RESTRICTIONS if size < 40 else RESTRICTIONS[turn % 4 :: 4]
            turn += 1
            for restrictions in some:
                check(logits, policy(temperature, restrictions))


def test_random_rows_of_all_small_sizes():
    rng = np.random.default_rng(77)
    for turn in range(3000):
        size = int(rng.integers(1, 12))
        scale = rng.choice([0.1, 1.0, 5.0, 12.0])
        logits = (np.round(rng.standard_normal(size) * 8) / 8 * scale).astype(np.float32)
        check(logits, policy(TEMPERATURES[turn % 3], RESTRICTIONS[turn % len(RESTRICTIONS)]))


@pytest.mark.parametrize("size", [129_280, 262_144])
def test_a_row_of_a_real_vocabulary(size):
    rng = np.random.default_rng(size)
    logits = (rng.standard_normal(size) * 2.5).astype(np.float32)
    check(logits, policy(1.0, {}))
    if size < 200_000:
        check(logits, policy(1.0, {"support": 32}))
        check(np.round(logits), policy(1.0, {"top_p": TOTAL // 2, "support": 40}))
    flat = np.zeros(size, np.float32)
    row = cpu.quantise(flat, policy(1.0, {}))
    base, left = divmod(TOTAL, size)
    assert (row.counts == base + (np.arange(size) < left)).all()
    assert cpu.quantise(flat, policy(1.0, {"support": 32})).ids.tolist() == list(range(32))


def test_d1_the_top_three_alone_have_counts():
    logits = np.array([0.1, 2.0, 1.0, 2.0, -1.0, 1.0, 0.0, -3.0], np.float32)
    row, _ = check(logits, policy(1.0, {"top_k": 3}))
    assert np.flatnonzero(row.counts).tolist() == [1, 2, 3]
    assert row.counts.sum() == TOTAL


def test_d2_near_tied_bfloat16_logits():
    logits = np.array([1.0, 1.0078125, 1.0, 0.9921875] * 50, np.float32)
    check(logits, policy(float(np.float32(0.7)), {}))


def test_ties_at_zero_do_not_look_at_its_sign():
    logits = np.full(400, -1, np.float32)
    logits[[5, 130, 260, 399]] = [-0.0, 0.0, -0.0, 0.0]
    row = cpu.quantise(logits, policy(1.0, {"support": 2}))
    assert row.ids.tolist() == [5, 130]
    assert cpu.quantise(logits, policy(0.0, {"support": 2})).ids.tolist() == [5]


def test_out_takes_the_counts_of_a_dense_row():
    logits = np.linspace(-4, 4, 50, dtype=np.float32)
    for given in (policy(1.0, {}), policy(1.0, {"top_k": 3}), policy(0.0, {})):
        out = np.full(50, -1, np.int32)
        row = cpu.quantise(logits, given, out)
        assert row.counts is out
        assert row.exact() == exact_counts(logits, given)
    with pytest.raises(ArithmeticRefusalError):
        cpu.quantise(logits, policy(1.0, {}), np.empty(49, np.int32))


def test_rows_made_one_after_another_share_no_memory():
    rng = np.random.default_rng(4)
    logits = [rng.standard_normal(300).astype(np.float32) for _ in range(6)]
    for given in (policy(1.0, {}), policy(1.0, {"support": 9, "top_p": TOTAL // 2})):
        rows = [cpu.quantise(row, given) for row in logits]
        for row, made in zip(logits, rows, strict=True):
            assert made.exact() == exact_counts(row, given)


def test_read_only_logits_are_taken():
    logits = np.linspace(-4, 4, 50, dtype=np.float32)
    logits.flags.writeable = False
    check(logits, policy(1.0, {}))


def test_ids_only_is_the_greedy_token():
    logits = np.array([0, 3, 3], np.float32)
    row = cpu.quantise(logits, ProposalPolicy(Layout.IDS_ONLY, 5, 0.0))
    assert row.exact() == Counts(3, TOTAL, (1,), (TOTAL,))


NAN_WITH_SIGN = np.array([0xFFC00001], np.uint32).view(np.float32)[0]
REFUSED_LOGITS = [
    ([0, np.nan, 1], RefusalCode.NON_FINITE),
    ([NAN_WITH_SIGN, 1, 2], RefusalCode.NON_FINITE),
    ([-np.inf, np.nan], RefusalCode.NON_FINITE),
    ([np.inf, 0], RefusalCode.NON_FINITE),
    ([-np.inf], RefusalCode.ZERO_MASS),
    ([-np.inf] * 200, RefusalCode.ZERO_MASS),
]


@pytest.mark.parametrize(("values", "code"), REFUSED_LOGITS)
def test_e49_rows_of_nan_infinity_or_nothing_are_refused(values, code):
    logits = np.array(values, np.float32)
    for temperature in (0.0, 1.0):
        for restrictions in ({}, {"support": 1}):
            with pytest.raises(ArithmeticRefusalError) as refusal:
                cpu.quantise(logits, policy(temperature, restrictions))
            assert refusal.value.code is code
        with pytest.raises(ArithmeticRefusalError) as refusal:
            exact.quantise(logits.tolist(), temperature)
        assert refusal.value.code is code


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros(4),
        np.zeros(4, np.float16),
        np.zeros(4, np.dtype(np.float32).newbyteorder("S")),
        np.zeros((2, 2), np.float32),
        np.zeros(8, np.float32)[::2],
        np.zeros(0, np.float32),
        np.zeros(4, np.int32),
    ],
)
def test_x46_only_contiguous_binary32_in_machine_order_is_taken(logits):
    assert sys.byteorder == "little"
    with pytest.raises(ArithmeticRefusalError) as refusal:
        cpu.quantise(logits, policy(1.0, {}))
    assert refusal.value.code is RefusalCode.OUT_OF_RANGE


@pytest.mark.parametrize(
    "given",
    [
        ProposalPolicy(Layout.SPARSE, 1, 1.0),
        ProposalPolicy(Layout.DENSE, 1, 1.0, support=2),
        ProposalPolicy(Layout.IDS_ONLY, 1, 1.0),
        ProposalPolicy(Layout.DENSE, 1, -1.0),
        ProposalPolicy(Layout.DENSE, 1, float("nan")),
        ProposalPolicy(Layout.DENSE, 1, 1.0, top_p=0),
        ProposalPolicy(Layout.DENSE, 1, 1.0, min_p=TOTAL + 1),
    ],
)
def test_a_policy_that_is_none_is_refused(given):
    with pytest.raises(ArithmeticRefusalError) as refusal:
        cpu.quantise(np.zeros(4, np.float32), given)
    assert refusal.value.code is RefusalCode.OUT_OF_RANGE


@pytest.mark.parametrize("dense", [True, False])
def test_draws_equal_the_exact_ones_at_every_edge(dense):
    rng = np.random.default_rng(8)
    for size in (1, 3, 33, 600):
        logits = (rng.standard_normal(size) * 6).astype(np.float32)
        counts = exact.quantise(logits.tolist(), 1.0)
        row = QRow.of_counts(counts, dense=dense)
        edges = [0, *accumulate(counts.counts)]
        words = {edge + step for edge in edges for step in (-1, 0, 1)}
        words = sorted(word for word in words if 0 <= word < TOTAL)
        for word in words if size < 600 else words[::17]:
            token = exact_draw(counts, iter([word]))
            assert cpu.draw(row, word) == token


def test_a_word_out_of_range_and_a_short_row_are_refused():
    row = QRow(2, None, np.array([TOTAL // 2, TOTAL // 2], np.int32))
    for word in (-1, TOTAL):
        with pytest.raises(ArithmeticRefusalError):
            cpu.draw(row, word)
    with pytest.raises(ArithmeticRefusalError) as refusal:
        cpu.draw(QRow(2, None, np.array([1, 1], np.int32)), 2)
    assert refusal.value.code is RefusalCode.INCONSISTENT_ALLOCATION


@pytest.mark.parametrize("total", [1, 3, (1 << 38) + 1, (1 << 53) + 1, (1 << 62) - 1, 1 << 62])
def test_shares_are_exact_up_to_the_largest_sum_of_weights(total):
    """2^24 ids of the full weight 2^38 sum to 2^62, the most that can be."""
    rng = np.random.default_rng(3)
    most = min(total, 1 << 38)
    weights = np.concatenate([[0, 1, most, most - 1], rng.integers(0, most + 1, 400)])
    counts, remainders = np.empty(404, np.int32), np.empty(404, np.int64)
    left, positive = cpu_quantise.floor_counts(weights, total, counts, remainders)
    expected = [divmod(weight * TOTAL, total) for weight in weights.tolist()]
    assert list(zip(counts.tolist(), remainders.tolist(), strict=True)) == expected
    assert left == TOTAL - sum(count for count, _ in expected)
    assert positive == np.count_nonzero(weights)


def test_an_inconsistent_allocation_is_refused_and_touches_no_other_row(monkeypatch):
    """One more left over than there are weights: impossible, and so an error and never a q."""
    logits = np.linspace(-1, 1, 2 * 9, dtype=np.float32).reshape(2, 9)
    policy = ProposalPolicy(Layout.DENSE, 1, 1.0)
    due, _ = CpuKernels().quantise(logits, policy)
    own, calls = cpu_quantise.floor_counts, []

    def broken(weights, total, counts, remainders):
        left, positive = own(weights, total, counts, remainders)
        calls.append(left)
        return (positive, positive) if len(calls) == 1 else (left, positive)

    monkeypatch.setattr(cpu_quantise, "floor_counts", broken)
    q, status = CpuKernels().quantise(logits, policy)
    assert status.tolist() == [RefusalCode.INCONSISTENT_ALLOCATION, 0]
    assert not q.counts[0].any() and (q.counts[1] == due.counts[1]).all()
    assert CpuKernels().draw(q, np.array([5, 5]))[0] == NO_TOKEN
