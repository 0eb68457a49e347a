"""Counts and draws of the backends are one another's to the bit (A1-A16)."""

import numpy as np
import pytest
import torch

from draftwire.errors import ArithmeticRefusalError, ConfigurationError, RefusalCode
from draftwire.exact.words import Address, Domain, KeyedWords, RequestKey
from draftwire.kernels import backend as backends
from draftwire.kernels.backend import (
    NO_TOKEN,
    OK,
    PAD_ID,
    UNDECIDED,
    QRows,
)
from draftwire.kernels.torch import quantise as torch_quantise
from draftwire.kernels.torch.select import chosen
from draftwire.kernels.triton.backend import TritonBackend
from draftwire.kernels.triton.tiles import Tiling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

from .batches import POLICIES, differing, host, logits_of, moved, policy, with_refused
from .interpreted import BLOCKS_OF_16, DEVICE, NUMPY, TORCH, TRITON

ROWS = 7_168
SIZES = (1, 2, 3, 5, 7, 12, 17)


def compare(backend, rows, given, seed):
    """Weigh, quantise and draw on numpy and on a backend: the rows that differ by a bit."""
    expected, status = NUMPY.quantise(rows, given)
    q, other = backend.quantise(backend.from_host(rows), given)
    wrong = set(differing(expected, host(backend, q)).tolist())
    wrong |= set(np.flatnonzero(status != backend.to_host(other)).tolist())
    if given.temperature:
        weights, _ = NUMPY.weights(rows, given.temperature)
        found, _ = backend.weights(backend.from_host(rows), given.temperature)
        wrong |= set(np.flatnonzero((weights != backend.to_host(found)).any(1)).tolist())
    words = np.random.default_rng(seed).integers(0, TOTAL, len(rows))
    tokens = backend.to_host(backend.draw(q, backend.from_host(words)))
    return wrong | set(np.flatnonzero(NUMPY.draw(expected, words) != tokens).tolist())


@pytest.mark.parametrize(("index", "size"), list(enumerate(SIZES)))
def test_100352_rows_equal_on_numpy_torch_and_triton(index, size):
    """7 sizes, 2 policies of 14 each, 7,168 rows each: 100,352 rows, all on all three backends."""
    for turn in (2 * index, 2 * index + 1):
        rows = with_refused(logits_of(ROWS, size, seed=turn))
        for backend in (TORCH, TRITON):
            assert not compare(backend, rows, POLICIES[turn], turn), (backend.name, POLICIES[turn])


@pytest.mark.parametrize("turn", range(0, 14, 2))
def test_rows_of_several_blocks_are_equal_on_triton(turn):
    """7 policies, 128 rows each of 3 blocks."""
    rows = with_refused(logits_of(128, 41, seed=turn))
    assert not compare(BLOCKS_OF_16, rows, POLICIES[turn], turn)


@pytest.mark.parametrize("size", [129_280, 262_144])
def test_200_rows_of_a_real_vocabulary_are_equal_on_numpy_and_torch(size):
    """200 rows at V = 129,280 and 200 at 262,144; every eighth is adversarial, of twelve kinds."""
    for turn in range(25):
        given = (policy(), policy(support=32), POLICIES[9])[turn % 8 // 3]
        rows = logits_of(8, size, seed=turn * 1000 + size, first=turn * 8)
        assert not compare(TORCH, rows, given, turn)


def test_one_row_of_a_real_vocabulary_is_equal_on_triton():
    """8 blocks of 16,384, with ties of the remainder in every one of them."""
    rows = np.round(logits_of(2, 129_280, seed=1))
    assert not compare(TritonBackend("cpu", Tiling(block=16_384)), rows, policy(), 0)


def test_bfloat16_logits_widen_exactly():
    rows = torch.from_numpy(logits_of(512, 33, seed=2)).to(torch.bfloat16)
    wide = rows.to(torch.float32).numpy()
    for given in (POLICIES[0], POLICIES[9], POLICIES[6]):
        expected, status = NUMPY.quantise(wide, given)
        for backend in (TORCH, TRITON):
            q, other = backend.quantise(rows, given)
            assert not len(differing(expected, host(backend, q)))
            assert (status == backend.to_host(other)).all()


def test_weights_are_equal_and_zero_in_a_refused_row():
    rows = with_refused(logits_of(512, 9, seed=3))
    weights, status = NUMPY.weights(rows, 0.75)
    assert (weights[status != 0] == 0).all() and (weights[status == 0].max(1) == 1 << 38).all()
    for backend in (TORCH, TRITON):
        found = [backend.to_host(each) for each in backend.weights(backend.from_host(rows), 0.75)]
        assert (found[0] == weights).all() and (found[1] == status).all()


def test_e49_a_refused_row_says_why_and_touches_no_other():
    rows = logits_of(64, 6, seed=4)
    bad = with_refused(rows)
    for backend in (NUMPY, TORCH, TRITON):
        good, _ = backend.quantise(backend.from_host(rows), policy())
        q, status = backend.quantise(backend.from_host(bad), policy())
        q, good, status = host(backend, q), host(backend, good), backend.to_host(status)
        expected = np.zeros(64, np.int32)
        expected[[1, 3, 5]] = RefusalCode.NON_FINITE
        expected[2] = RefusalCode.ZERO_MASS
        assert (status == expected).all()
        assert (q.counts[status != 0] == 0).all()
        assert (q.counts[status == 0] == good.counts[status == 0]).all()
        tokens = backend.draw(moved(backend, q), backend.from_host(np.full(64, TOTAL - 1)))
        assert ((backend.to_host(tokens) == NO_TOKEN) == (status != 0)).all()


def test_draws_are_equal_at_every_edge():
    rows = logits_of(40, 6, seed=5)
    for given in (policy(), policy(support=4)):
        q, _ = NUMPY.quantise(rows, given)
        edges = np.cumsum(q.counts, axis=1, dtype=np.int64)
        for step in (-1, 0, 1):
            for column in range(edges.shape[1]):
                words = np.clip(edges[:, column] + step, 0, TOTAL - 1)
                expected = NUMPY.draw(q, words)
                for backend in (TORCH, TRITON) if step == 0 else (TORCH,):
                    tokens = backend.draw(moved(backend, q), backend.from_host(words))
                    assert (backend.to_host(tokens) == expected).all()


def test_words_are_the_exact_ones_on_every_backend():
    rng = np.random.default_rng(6)
    edges = np.array([0, 1, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
    addresses = rng.integers(0, 2**32, (300, 3))
    addresses[:49, 2] = np.repeat(edges, 7)
    addresses[:49, 0] = np.tile(edges, 7)
    requests = [RequestKey(int(seed)) for seed in rng.integers(0, 2**62, 300)]
    keys = np.array([request.key(Domain.PROPOSAL) for request in requests])
    expected = []
    for request, address in zip(requests, addresses.tolist(), strict=True):
        words = KeyedWords(request).words(Address(*address, Domain.PROPOSAL))
        expected.append([next(words) for _ in range(4)])
    for backend in (NUMPY, TORCH, DEVICE, TRITON):
        given = backend.from_host(keys), backend.from_host(addresses)
        for count in (1, 2, 4):
            found = backend.to_host(backend.words(*given, count))
            assert (found == np.array(expected)[:, :count]).all()


def test_top_k_of_shards_is_top_k_of_the_whole():
    rows = logits_of(96, 30, seed=7)
    ids = np.broadcast_to(np.arange(30, dtype=np.int32), rows.shape).copy()
    expected = np.lexsort((ids, -rows.astype(np.float64)), axis=-1)[:, :5]
    for backend in (NUMPY, TORCH, TRITON):
        given, places = backend.from_host(rows), backend.from_host(ids)
        _, whole = backend.top_k(given, places, 5)
        assert (backend.to_host(whole) == expected).all()
        halves = [
            [backend.to_host(each) for each in backend.top_k(given[:, part], places[:, part], 5)]
            for part in (slice(0, 13), slice(13, 30))
        ]
        # The shards' candidates in the wrong order: the ids decide ties, not the places.
        merged = [np.concatenate([half[i] for half in halves[::-1]], axis=1) for i in (0, 1)]
        _, found = backend.top_k(backend.from_host(merged[0]), backend.from_host(merged[1]), 5)
        assert (backend.to_host(found) == expected).all()


def test_top_k_leaves_pads_behind():
    logits = np.array([[1.0, -np.inf, 9.0, 2.0]], np.float32)
    ids = np.array([[7, 3, PAD_ID, 5]], np.int32)
    for backend in (NUMPY, TORCH, TRITON):
        kept, found = backend.top_k(backend.from_host(logits), backend.from_host(ids), 4)
        assert backend.to_host(found).tolist() == [[5, 7, 3, PAD_ID]]
        assert backend.to_host(kept).tolist() == [[2.0, 1.0, -np.inf, -np.inf]]


def test_lookup_by_global_id():
    rows = logits_of(200, 20, seed=8)
    tokens = np.random.default_rng(8).integers(-3, 23, 200)
    for given in (policy(), policy(support=5)):
        q, _ = NUMPY.quantise(rows, given)
        for backend in (NUMPY, TORCH, TRITON):
            found = backend.to_host(backend.lookup(moved(backend, q), backend.from_host(tokens)))
            for row, (token, count) in enumerate(zip(tokens.tolist(), found.tolist(), strict=True)):
                if q.ids is None:
                    expected = q.counts[row, token] if 0 <= token < 20 else 0
                else:
                    expected = q.counts[row][(q.ids[row] == token) & (token >= 0)].sum()
                assert count == expected


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
    expected, _ = NUMPY.weights(rows, 1.0)
    assert (TORCH.weights(torch.from_numpy(rows), 1.0)[0].numpy() == expected).all()
    monkeypatch.setattr(torch_quantise, "exp64", mutant)
    assert (TORCH.weights(torch.from_numpy(rows), 1.0)[0].numpy() != expected).any()


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
def test_a_policy_that_is_none_is_refused(given):
    rows = np.zeros((2, 4), np.float32)
    for backend in (NUMPY, TORCH, TRITON):
        with pytest.raises(ArithmeticRefusalError):
            backend.quantise(backend.from_host(rows), given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
def test_x46_other_types_than_binary32_and_bfloat16_are_refused(dtype):
    for backend in (TORCH, TRITON):
        with pytest.raises(ArithmeticRefusalError):
            backend.quantise(torch.zeros(2, 4, dtype=dtype), policy())


def test_ids_only_is_the_greedy_token():
    rows = np.array([[0, 3, 3], [5, 0, 5]], np.float32)
    for backend in (NUMPY, TORCH, TRITON):
        given = ProposalPolicy(Layout.IDS_ONLY, 1, 0.0)
        q, _ = backend.quantise(backend.from_host(rows), given)
        q = host(backend, q)
        assert q.ids.tolist() == [[1], [0]] and q.counts.tolist() == [[TOTAL]] * 2


def test_backends_that_cannot_be_are_refused_with_the_way_out(monkeypatch):
    with pytest.raises(ConfigurationError, match="one of numpy, torch, triton"):
        backends.load("cupy")
    with pytest.raises(ConfigurationError, match="cpu"):
        backends.load("numpy", "cuda")
    with pytest.raises(ConfigurationError, match="no device"):
        backends.load("torch", "nowhere")
    monkeypatch.setattr("draftwire.kernels.triton.backend.interpreted", lambda: False)
    with pytest.raises(ConfigurationError, match="TRITON_INTERPRET"):
        TritonBackend("cpu")


def test_rows_know_their_type():
    assert isinstance(NUMPY.quantise(np.zeros((1, 2), np.float32), policy())[0], QRows)
    assert not {OK, UNDECIDED} & {int(code) for code in RefusalCode}
