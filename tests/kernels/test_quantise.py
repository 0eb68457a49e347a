"""Counts and draws of cpu, torch and triton are one another's to the bit (A1-A16)."""

import numpy as np
import pytest
import torch

from draftwire.errors import ArithmeticRefusalError, ConfigurationError, RefusalCode
from draftwire.exact import quantise as exact
from draftwire.kernels.cpu import quantise_loops
from draftwire.kernels.protocol import NO_TOKEN, OK, UNDECIDED
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.torch import quantise as torch_quantise
from draftwire.kernels.torch.select import chosen
from draftwire.kernels.triton.integer_weights import Weighing
from draftwire.kernels.triton.kernels import TritonKernels
from draftwire.kernels.triton.tiles import Tiling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

from .batches import POLICIES, differing, host, logits_of, moved, policy, with_refused
from .interpreted import BLOCKS_OF_16, CPU, EVERY, NAMES, TORCH, TRITON

every = pytest.mark.parametrize("kernels", EVERY, ids=NAMES)
ROWS = 7_168
SIZES = (1, 2, 3, 5, 7, 12, 17)


def cpu_weights(rows, temperature):
    """Integer weights of rows that are not refused, 0 in the others (A1-A4)."""
    weights = np.zeros(rows.shape, np.int64)
    for row, out in zip(rows, weights, strict=True):
        if np.isfinite(row.max()):
            quantise_loops.integer_weights(row, float(row.max()), 1.0 / temperature, out)
    return weights


def torch_weights(rows, temperature):
    return torch_quantise.integer_weights(torch.from_numpy(rows), temperature)[0].numpy()


def triton_weights(rows, temperature):
    cut = Tiling().of(*rows.shape, True)
    return Weighing(torch.from_numpy(rows), temperature, cut).weights.numpy()


WEIGHTS = {"torch": torch_weights, "triton": triton_weights}


def compare(kernels, rows, given, seed):
    """Weigh, quantise and draw on the CPU and on other kernels: the rows that differ by a bit."""
    expected, status = CPU.quantise(rows, given)
    q, other = kernels.quantise(rows, given)
    wrong = set(differing(expected, host(q)).tolist())
    wrong |= set(np.flatnonzero(status != np.asarray(other)).tolist())
    if given.temperature:
        weights = cpu_weights(rows, given.temperature)
        found = WEIGHTS[kernels.name](rows, given.temperature)
        wrong |= set(np.flatnonzero((weights != found).any(1)).tolist())
    words = np.random.default_rng(seed).integers(0, TOTAL, len(rows))
    tokens = kernels.draw(q, words)
    return wrong | set(np.flatnonzero(CPU.draw(expected, words) != tokens).tolist())


@pytest.mark.parametrize(("index", "size"), list(enumerate(SIZES)))
def test_100352_rows_equal_on_cpu_torch_and_triton(index, size):
    """7 sizes, 2 policies of 14 each, 7,168 rows each: 100,352 rows, all on all three."""
    for turn in (2 * index, 2 * index + 1):
        rows = with_refused(logits_of(ROWS, size, seed=turn))
        for kernels in (TORCH, TRITON):
            assert not compare(kernels, rows, POLICIES[turn], turn), (kernels.name, POLICIES[turn])


@pytest.mark.parametrize("turn", range(0, 14, 2))
def test_rows_of_several_blocks_are_equal_on_triton(turn):
    """7 policies, 128 rows each of 3 blocks."""
    rows = with_refused(logits_of(128, 41, seed=turn))
    assert not compare(BLOCKS_OF_16, rows, POLICIES[turn], turn)


@pytest.mark.parametrize("size", [129_280, 262_144])
def test_200_rows_of_a_real_vocabulary_are_equal_on_cpu_and_torch(size):
    """200 rows at V = 129,280 and 200 at 262,144; every eighth is adversarial, of twelve kinds."""
    for turn in range(25):
        given = (policy(), policy(support=32), POLICIES[9])[turn % 8 // 3]
        rows = logits_of(8, size, seed=turn * 1000 + size, first=turn * 8)
        assert not compare(TORCH, rows, given, turn)


def test_one_row_of_a_real_vocabulary_is_equal_on_triton():
    """8 blocks of 16,384, with ties of the remainder in every one of them."""
    rows = np.round(logits_of(2, 129_280, seed=1))
    assert not compare(TritonKernels(tiling=Tiling(block=16_384)), rows, policy(), 0)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@every
def test_narrower_logits_widen_exactly(kernels, narrow):
    rows = torch.from_numpy(logits_of(256, 33, seed=2)).clamp(-60_000, 60_000).to(narrow)
    wide = rows.to(torch.float32).numpy()
    for given in (POLICIES[0], POLICIES[9], POLICIES[6]):
        expected, status = CPU.quantise(wide, given)
        q, other = kernels.quantise(rows, given)
        assert not len(differing(expected, host(q)))
        assert (status == np.asarray(other)).all()


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_equal_and_zero_in_a_refused_row(name):
    rows = with_refused(logits_of(512, 9, seed=3))
    _, status = CPU.quantise(rows, policy())
    weights = cpu_weights(rows, 0.75)
    assert (weights[status != 0] == 0).all() and (weights[status == 0].max(1) == 1 << 38).all()
    assert (WEIGHTS[name](rows, 0.75) == weights).all()


@every
def test_e49_a_refused_row_says_why_and_touches_no_other(kernels):
    rows = logits_of(64, 6, seed=4)
    good, _ = kernels.quantise(rows, policy())
    own, status = kernels.quantise(with_refused(rows), policy())
    q, good, status = host(own), host(good), np.asarray(status)
    expected = np.zeros(64, np.int32)
    expected[[1, 3, 5]] = RefusalCode.NON_FINITE
    expected[2] = RefusalCode.ZERO_MASS
    assert (status == expected).all()
    assert (q.counts[status != 0] == 0).all()
    assert (q.counts[status == 0] == good.counts[status == 0]).all()
    tokens = kernels.draw(own, np.full(64, TOTAL - 1))
    assert ((tokens == NO_TOKEN) == (status != 0)).all()


@pytest.mark.parametrize("given", [policy(), policy(support=4)])
@every
def test_draws_are_equal_at_every_edge(kernels, given):
    """The first id whose cumulative count is above the word: below, at and above each edge."""
    q, _ = CPU.quantise(logits_of(40, 6, seed=5), given)
    edges = np.cumsum(q.counts, axis=1, dtype=np.int64)
    for step in (-1, 0, 1) if kernels.name != "triton" else (0,):
        for column in range(edges.shape[1]):
            words = np.clip(edges[:, column] + step, 0, TOTAL - 1)
            at = (edges <= words[:, None]).sum(1)
            expected = at if q.ids is None else q.ids[np.arange(len(at)), at]
            assert (kernels.draw(moved(kernels, q), words) == expected).all()


@pytest.mark.parametrize("given", [policy(), policy(support=5)])
@every
def test_rows_for_the_wire_have_the_counts_by_id(kernels, given):
    """Dense and sparse; 0 outside the support."""
    q, _ = CPU.quantise(logits_of(200, 20, seed=8), given)
    for index, row in enumerate(kernels.host_rows(moved(kernels, q))):
        ids = range(20) if q.ids is None else q.ids[index].tolist()
        counts = dict(zip(ids, q.counts[index].tolist(), strict=True))
        assert [row.of(token) for token in range(20)] == [counts.get(at, 0) for at in range(20)]


def contracted(d):
    """A4 as a compiler that may contract would run it: the products keep their extra bits."""
    wide = np.longdouble
    k = torch.floor(d * torch_quantise.exact.LOG2E + 0.5)
    r = d - k * torch_quantise.exact.LN2_HI - k * torch_quantise.exact.LN2_LO
    s = np.full(r.shape, torch_quantise.exact.COEFFICIENTS[11], wide)
    for coefficient in torch_quantise.exact.COEFFICIENTS[10::-1]:
        s = (s * r.numpy().astype(wide) + wide(coefficient)).astype(np.float64).astype(wide)
    return torch.from_numpy(s.astype(np.float64)) * torch.exp2(k)


def last_ties(keys, threshold, ties):
    return chosen(keys.flip(1), threshold, ties).flip(1)


def all_ties(keys, threshold, ties):
    return keys >= threshold[:, None]


def in_binary32(d):
    return torch.exp(d.to(torch.float32)).to(torch.float64)


@pytest.mark.parametrize("mutant", [torch.exp, contracted, in_binary32])
def test_another_exponential_is_seen(monkeypatch, mutant):
    """One weight in some thousands differs, by one of 2^38; 512,000 weights are compared."""
    rows = -np.random.default_rng(12).random((4000, 128)).astype(np.float32) * 0.35
    rows[:, 0] = 0
    expected = cpu_weights(rows, 1.0)
    assert exact.weights(rows[0].tolist(), 1.0) == expected[0].tolist()
    assert (torch_weights(rows, 1.0) == expected).all()
    monkeypatch.setattr(torch_quantise, "exp64", mutant)
    assert (torch_weights(rows, 1.0) != expected).any()


@pytest.mark.parametrize(
    "mutant",
    [last_ties, all_ties, lambda keys, threshold, ties: keys > threshold[:, None]],
    ids=["highest id", "every tie", "no tie"],
)
def test_other_ties_are_seen(monkeypatch, mutant):
    """The comparison of the tests above fails for each of these: it can."""
    rows = logits_of(2000, 17, seed=9)
    assert not compare(TORCH, rows, policy(), 0)
    monkeypatch.setattr(torch_quantise, "chosen", mutant)
    assert compare(TORCH, rows, policy(), 0)


@pytest.mark.parametrize(
    "given",
    [
        ProposalPolicy(Layout.SPARSE, 1, 1.0),
        ProposalPolicy(Layout.DENSE, 1, 1.0, support=2),
        ProposalPolicy(Layout.IDS_ONLY, 1, 1.0),
        ProposalPolicy(Layout.DENSE, 1, -1.0),
        ProposalPolicy(Layout.DENSE, 1, 1.0, top_p=0),
    ],
)
@every
def test_a_policy_that_is_none_is_refused(kernels, given):
    with pytest.raises(ArithmeticRefusalError) as refused:
        kernels.quantise(np.zeros((2, 4), np.float32), given)
    assert refused.value.code is RefusalCode.OUT_OF_RANGE


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
@every
def test_x46_logits_of_other_types_are_refused(kernels, dtype):
    with pytest.raises(ArithmeticRefusalError) as refused:
        kernels.quantise(torch.zeros(2, 4, dtype=dtype), policy())
    assert refused.value.code is RefusalCode.OUT_OF_RANGE


@every
def test_ids_only_is_the_greedy_token(kernels):
    rows = np.array([[0, 3, 3], [5, 0, 5]], np.float32)
    q, _ = kernels.quantise(rows, ProposalPolicy(Layout.IDS_ONLY, 1, 0.0))
    q = host(q)
    assert q.ids.tolist() == [[1], [0]] and q.counts.tolist() == [[TOTAL]] * 2


@every
def test_no_rows_have_no_q(kernels):
    for given in POLICIES:
        q, status = kernels.quantise(kernels.from_host(np.zeros((0, 5), np.float32)), given)
        width = 5 if given.layout is Layout.DENSE else max(1, given.support)
        assert (len(status), tuple(q.counts.shape)) == (0, (0, width))
        assert kernels.draw(q, np.zeros(0, np.int64)).tolist() == kernels.host_rows(q) == []


def test_kernels_that_cannot_be_are_refused_with_the_way_out(monkeypatch):
    with pytest.raises(ConfigurationError, match="one of auto, cpu, torch, triton"):
        kernels_for("cupy", "cpu")
    with pytest.raises(ConfigurationError, match="no device"):
        kernels_for("torch", "nowhere")
    monkeypatch.setattr("draftwire.kernels.triton.kernels.interpreted", lambda: False)
    with pytest.raises(ConfigurationError, match="TRITON_INTERPRET"):
        TritonKernels("cpu")


def test_a_status_is_no_refusal():
    assert not {OK, UNDECIDED} & {int(code) for code in RefusalCode}
