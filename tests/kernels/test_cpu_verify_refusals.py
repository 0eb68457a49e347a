"""What the CPU's verification refuses, and rows of every width, order and stride."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import quantise as exact_quantise
from draftwire.exact.counts import TOTAL, Counts
from draftwire.exact.verify import Verdict
from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels import cpu
from draftwire.kernels.cpu import verify_loops as cpu_verify
from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.cpu.verify_loops import target_weights
from draftwire.kernels.protocol import Round
from draftwire.kernels.rows import QRow
from draftwire.rows.prepare import prepare
from draftwire.verifier.judge import judge
from tests.kernels.test_cpu_verify import AT, Numbers, rows_of, target, verify

NAN_WITH_SIGN = -np.nan


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([1.0, np.nan], RefusalCode.NON_FINITE),
        ([1.0, NAN_WITH_SIGN], RefusalCode.NON_FINITE),
        ([np.inf, 1.0], RefusalCode.NON_FINITE),
        ([-np.inf, 1.0], RefusalCode.NON_FINITE),
        ([np.nan, -1.0], RefusalCode.NON_FINITE),
        ([1.0, -1e-300], RefusalCode.NEGATIVE_WEIGHT),
        ([0.0, 0.0], RefusalCode.ZERO_MASS),
        ([0.0, -0.0], RefusalCode.ZERO_MASS),
    ],
)
def test_e49_a_row_that_is_no_distribution_is_refused_when_it_is_reached(values, code):
    bad, good = np.array(values), np.array([1.0, 1.0])
    accepted = QRow.of_counts(Counts(2, TOTAL, (0, 1), (TOTAL // 2,) * 2), dense=True)
    rejected = QRow.of_counts(Counts(2, TOTAL, (0,), (TOTAL,)), dense=True)
    last = Numbers(Fraction(3, 4), Fraction(0))
    for call in (
        lambda: target(bad, Fraction(0)),
        lambda: verify(np.stack([good, bad]), [0], [accepted], last, **AT),
        lambda: verify(np.stack([bad, good]), [0], [accepted], last, **AT),
        lambda: exact_quantise.integers(bad.tolist()),
    ):
        with pytest.raises(ArithmeticRefusalError) as refusal:
            call()
        assert refusal.value.code is code
    verdict = verify(np.stack([good, bad]), [0], [rejected], last, **AT)
    assert verdict == Verdict(0, 1, "correction")


@pytest.mark.parametrize(
    ("tokens", "rows", "code"),
    [
        ([], 2, RefusalCode.OUT_OF_RANGE),
        ([0, 0], 1, RefusalCode.OUT_OF_RANGE),
        ([0], 3, RefusalCode.OUT_OF_RANGE),
        ([2], 2, RefusalCode.OUT_OF_RANGE),
        ([-1], 2, RefusalCode.OUT_OF_RANGE),
        ([0, 1], 3, RefusalCode.ZERO_Q),
    ],
)
def test_a_proposal_that_is_none_is_refused(tokens, rows, code):
    point = QRow.of_counts(Counts(2, TOTAL, (0,), (TOTAL,)), dense=False)
    with pytest.raises(ArithmeticRefusalError) as refusal:
        verify(np.ones((rows, 2)), tokens, [point] * len(tokens), Numbers(), **AT)
    assert refusal.value.code is code


@pytest.mark.parametrize(
    "p",
    [np.ones((2, 2), np.int64), np.ones((2, 1)), np.ones(4), np.ones((2, 0)), np.ones((2, 2, 2))],
)
def test_p_of_another_type_or_shape_is_refused(p):
    point = QRow.of_counts(Counts(2, TOTAL, (0,), (TOTAL,)), dense=False)
    with pytest.raises(ArithmeticRefusalError) as refusal:
        verify(p, [0], [point], Numbers(), **AT)
    assert refusal.value.code is RefusalCode.OUT_OF_RANGE


def test_scores_of_any_width_order_and_stride_are_the_same_row():
    scores = np.array([[1.0, -np.inf, 3.0, -800.0]], np.float32)
    weights = np.empty(4)
    target_weights(scores[0], weights)
    assert weights.tolist() == [exact_quantise.exp64(-2.0), 0.0, 1.0, 0.0]
    this = Round((), (), 0, 1, KeyedWords(RequestKey(3)), 1, 1, 0)
    expected = judge(CpuKernels(), weights[None], [this])
    wide = np.repeat(scores, 2, axis=1)
    read_only = scores.copy()
    read_only.flags.writeable = False
    narrow = torch.from_numpy(scores).to(torch.bfloat16)
    for same in (scores, wide[:, ::2], read_only, scores.astype(np.float16), narrow):
        assert judge(CpuKernels(), same, [this]) == expected


@pytest.mark.parametrize(
    ("scores", "code"),
    [
        (np.array([0.0, np.nan], np.float32), RefusalCode.NON_FINITE),
        (np.array([0.0, -np.nan], np.float32), RefusalCode.NON_FINITE),
        (np.array([0.0, np.inf], np.float32), RefusalCode.NON_FINITE),
        (np.array([-np.inf, -np.inf], np.float32), RefusalCode.ZERO_MASS),
        (np.array([], np.float32), RefusalCode.OUT_OF_RANGE),
        (np.zeros((1, 3), np.float32), RefusalCode.OUT_OF_RANGE),
        (np.zeros(3, np.int32), RefusalCode.OUT_OF_RANGE),
    ],
)
def test_e48_scores_without_a_distribution_are_refused(scores, code):
    with pytest.raises(ArithmeticRefusalError) as refusal:
        target(scores, Fraction(0))
    assert refusal.value.code is code


def test_a_row_knows_its_counts_and_refuses_other_shapes():
    counts = Counts(5, TOTAL, (1, 4), (5, TOTAL - 5))
    for q in rows_of(counts):
        assert q.exact() == counts
        assert [q.of(token) for token in range(5)] == counts.dense()
    for ids, tickets in (
        (None, np.zeros(4, np.int32)),
        (np.zeros(2, np.int32), np.zeros(3, np.int32)),
        (np.zeros(0, np.int32), np.zeros(0, np.int32)),
        (np.zeros(6, np.int32), np.zeros(6, np.int32)),
    ):
        with pytest.raises(ArithmeticRefusalError):
            QRow(5, ids, tickets)
    with pytest.raises(ArithmeticRefusalError):
        QRow.of_counts(Counts(1, 8, (0,), (8,)), dense=True)


def test_prepare_runs_every_loop_before_a_round_does():
    prepare()
    for module in (cpu.cpu_quantise, cpu.cpu_select):
        loops = {
            name: loop
            for name, loop in vars(module).items()
            if hasattr(loop, "signatures") and not name.startswith("_")
        }
        assert loops
        assert [name for name, loop in loops.items() if not loop.signatures] == []
    entries = ("accept_drafts", "accept_greedy", "draw_target", "draw_residual")
    assert all(len(getattr(cpu_verify, name).signatures) >= 1 for name in entries)


def test_p_far_below_the_largest_is_zero_and_the_rest_is_exp64():
    scores = np.array([0.0, -1.0, -27.5, -699.0, -700.0, -700.5, -np.inf], np.float32)
    weights = np.empty(7)
    target_weights(scores, weights)
    expected = [exact_quantise.exp64(float(score)) for score in scores[:5]]
    assert weights.tolist() == [*expected, 0.0, 0.0]
    assert abs(weights[3] / np.exp(-699.0) - 1) < 2.0**-44
