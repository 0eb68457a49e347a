"""What only a GPU can show: the compiled kernels equal to the bit, no waiting, graphs. `make gpu`.

Outside tests/, because nothing here may be skipped and a GPU is not everywhere.
"""

import numpy as np
import pytest
import torch

from draftwire.exact.words import Domain, RequestKey
from draftwire.kernels.backend import (
    OK,
    UNDECIDED,
    QRows,
    load,
)
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout
from tests.kernels.batches import POLICIES, differing, host, logits_of, moved, policy, with_refused

NUMPY = load("numpy")
DEVICE = {name: load(name, "cuda") for name in ("torch", "triton")}
ROWS, SIZES = 7_168, (1, 2, 3, 5, 7, 12, 17)
DOMAINS = (Domain.ACCEPTANCE, Domain.CORRECTION, Domain.BONUS)


def compare(rows, given, seed):
    """Both backends beside numpy, which is the slowest of them and asked once."""
    expected, status = NUMPY.quantise(rows, given)
    weights = NUMPY.weights(rows, given.temperature)[0] if given.temperature else None
    words = np.random.default_rng(seed).integers(0, TOTAL, len(rows))
    tokens = NUMPY.draw(expected, words)
    for backend in DEVICE.values():
        q, other = backend.quantise(backend.from_host(rows), given)
        assert not len(differing(expected, host(backend, q))), (backend.name, given)
        assert (status == backend.to_host(other)).all()
        if weights is not None:
            found, _ = backend.weights(backend.from_host(rows), given.temperature)
            assert (weights == backend.to_host(found)).all()
        assert (backend.to_host(backend.draw(q, backend.from_host(words))) == tokens).all()


@pytest.mark.parametrize(("index", "size"), list(enumerate(SIZES)))
def test_100352_rows_equal_numpys(index, size):
    """7 sizes, 2 policies of 14 each, 7,168 rows each."""
    for turn in (2 * index, 2 * index + 1):
        compare(with_refused(logits_of(ROWS, size, turn)), POLICIES[turn], turn)


@pytest.mark.parametrize("size", [129_280, 262_144])
def test_200_rows_of_a_real_vocabulary_equal_numpys(size):
    """200 rows each: every block of the compiled kernels, adversarial rows of twelve kinds."""
    for turn in range(25):
        given = (policy(), policy(support=32), POLICIES[9])[turn % 8 // 3]
        compare(logits_of(8, size, turn * 1000 + size, turn * 8), given, turn)


@pytest.mark.parametrize("name", DEVICE)
def test_bfloat16_logits_widen_exactly(name):
    rows = torch.from_numpy(logits_of(512, 3000, seed=2)).to(torch.bfloat16)
    expected, _ = NUMPY.quantise(rows.to(torch.float32).numpy(), policy())
    q, _ = DEVICE[name].quantise(rows.cuda(), policy())
    assert not len(differing(expected, host(DEVICE[name], q)))


def rounds_of(batch, depth, size, seed, given):
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((batch, depth + 1, size)) * 2).astype(np.float32)
    draft = logits[:, :depth] + rng.standard_normal((batch, depth, size)) * 0.5
    q, _ = NUMPY.quantise(draft.astype(np.float32).reshape(-1, size), given)
    tokens = NUMPY.draw(q, rng.integers(0, TOTAL, batch * depth)).reshape(batch, depth)
    ids = None if q.ids is None else q.ids.reshape(batch, depth, -1)
    rows = QRows(size, ids, q.counts.reshape(batch, depth, -1))
    requests = [RequestKey(seed * 1000 + index) for index in range(batch)]
    keys = np.array([[request.key(domain) for domain in DOMAINS] for request in requests])
    addresses = np.array([[3, index, 40] for index in range(batch)])
    return logits, tokens, rows, keys, addresses


@pytest.mark.parametrize("name", DEVICE)
@pytest.mark.parametrize(
    ("batch", "size", "given"),
    [
        (2000, 2, policy()),
        (2000, 30, policy(support=3)),
        (500, 3000, policy()),
        (8, 129_280, policy(support=32)),
        (8, 129_280, policy()),
    ],
)
def test_rounds_equal_numpys(name, batch, size, given):
    logits, tokens, q, keys, addresses = rounds_of(batch, 5, size, size, given)
    expected = NUMPY.verify(logits, tokens, q, NUMPY.draws(keys, addresses, 5))
    backend = DEVICE[name]
    place = backend.from_host
    draws = backend.draws(place(keys), place(addresses), 5)
    made = backend.verify(place(logits), place(tokens), moved(backend, q), draws)
    status = backend.to_host(made.status)
    # What a bound leaves undecided at this size is rare, and never another token.
    decided = (status == OK) & (expected.status == OK)
    assert decided.mean() > 0.999 and (status[~decided] == UNDECIDED).all()
    assert (backend.to_host(made.tokens)[decided] == expected.tokens[decided]).all()
    assert (backend.to_host(made.accepted)[decided] == expected.accepted[decided]).all()


class Captured:
    """A whole round, words and all, captured in one CUDA graph over fixed buffers."""

    def __init__(self, backend, batch, depth, size, given):
        self.backend, self.depth, self.given = backend, depth, given
        self.draft = torch.zeros(batch * depth, size, device="cuda")
        self.target = torch.zeros(batch, depth + 1, size, device="cuda")
        self.words = torch.zeros(batch * depth, dtype=torch.int64, device="cuda")
        self.keys = torch.zeros(batch, 3, 2, dtype=torch.int64, device="cuda")
        self.addresses = torch.zeros(batch, 3, dtype=torch.int64, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles, allocates, makes the layout of the words
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.run()

    def run(self):
        q, _ = self.backend.quantise(self.draft, self.given)
        batch = len(self.target)
        tokens = self.backend.draw(q, self.words).view(batch, self.depth)
        ids = None if q.ids is None else q.ids.view(batch, self.depth, -1)
        rows = QRows(q.vocab_size, ids, q.counts.view(batch, self.depth, -1))
        draws = self.backend.draws(self.keys, self.addresses, self.depth)
        return tokens, self.backend.verify(self.target, tokens, rows, draws)

    def fill(self, seed):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.target.normal_(generator=generator).mul_(3)
        self.draft.copy_(self.target[:, : self.depth].reshape(self.draft.shape))
        self.draft.add_(torch.empty_like(self.draft).normal_(generator=generator))
        self.words.random_(0, TOTAL, generator=generator)
        self.keys.random_(0, 1 << 32, generator=generator)
        self.addresses.random_(0, 1 << 20, generator=generator)


@pytest.mark.parametrize("name", DEVICE)
@pytest.mark.parametrize("given", [policy(), policy(support=32)])
def test_a_round_is_captured_in_a_graph_and_replays_as_it_runs(name, given):
    captured = Captured(DEVICE[name], 4, 5, 10_000, given)
    for seed in range(20):
        captured.fill(seed)
        captured.graph.replay()
        tokens, made = captured.out
        replayed = [each.clone() for each in (tokens, made.accepted, made.tokens, made.status)]
        tokens, made = captured.run()
        eager = (tokens, made.accepted, made.tokens, made.status)
        assert all(torch.equal(one, other) for one, other in zip(replayed, eager, strict=True))
        assert not made.status.any()


@pytest.mark.parametrize("name", DEVICE)
def test_no_operation_of_a_round_waits_for_the_device(name):
    captured = Captured(DEVICE[name], 4, 5, 5_000, policy(support=32))
    captured.fill(1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        captured.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_greedy_ids_only_and_top_k_of_shards():
    rows = logits_of(200, 3000, seed=7)
    ids = np.broadcast_to(np.arange(3000, dtype=np.int32), rows.shape).copy()
    for backend in DEVICE.values():
        given = ProposalPolicy(Layout.IDS_ONLY, 1, 0.0)
        expected, _ = NUMPY.quantise(rows, given)
        q, _ = backend.quantise(backend.from_host(rows), given)
        assert not len(differing(expected, host(backend, q)))
        _, due = NUMPY.top_k(rows[:, :64], ids[:, :64], 32)
        _, found = backend.top_k(
            backend.from_host(rows[:, :64]), backend.from_host(ids[:, :64]), 32
        )
        assert (backend.to_host(found) == due).all()
