"""What only a GPU can show: the compiled kernels equal to the bit, no waiting, graphs. `make gpu`.

Not among the tests of `make test`, because nothing here may be skipped and a GPU is not everywhere.
"""

import numpy as np
import pytest
import torch

from draftwire.kernels.adjustments import Added, Kept, Scaled
from draftwire.kernels.protocol import OK, UNDECIDED
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.torch import sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout
from tests.kernels.batches import POLICIES, logits_of, policy, with_refused
from tests.kernels.test_rounds import rounds_of

CPU = kernels_for("cpu", "cpu")
DEVICE = {name: kernels_for(name, "cuda") for name in ("torch", "triton")}
ROWS, SIZES = 7_168, (1, 2, 3, 5, 7, 12, 17)


def rows_of(kernels, q):
    return [
        (None if row.ids is None else row.ids.tolist(), row.counts.tolist())
        for row in kernels.host_rows(q)
    ]


def compare(rows, given, seed):
    """Both device classes beside the CPU, which is the slowest of them and asked once."""
    expected, status = CPU.quantise(rows, given)
    uniform24 = np.random.default_rng(seed).integers(0, TOTAL, len(rows))
    tokens = CPU.draw(expected, uniform24)
    sound = np.flatnonzero(status == OK).tolist()
    due = rows_of(CPU, expected)
    for name, kernels in DEVICE.items():
        q, other = kernels.quantise(torch.from_numpy(rows).cuda(), given)
        assert (status == kernels.transfer.to_host(other)).all(), (name, given)
        found = rows_of(kernels, q)
        assert all(found[at] == due[at] for at in sound), (name, given)
        assert (kernels.draw(q, uniform24) == tokens).all(), (name, given)


@pytest.mark.parametrize(("index", "size"), list(enumerate(SIZES)))
def test_100352_rows_equal_the_cpus(index, size):
    """7 sizes, 2 policies of 14 each, 7,168 rows each."""
    for turn in (2 * index, 2 * index + 1):
        compare(with_refused(logits_of(ROWS, size, turn)), POLICIES[turn], turn)


@pytest.mark.parametrize("size", [129_280, 262_144])
def test_200_rows_of_a_real_vocabulary_equal_the_cpus(size):
    """200 rows each: every block of the compiled kernels, adversarial rows of twelve kinds."""
    for turn in range(25):
        given = (policy(), policy(support=32), POLICIES[9])[turn % 8 // 3]
        compare(logits_of(8, size, turn * 1000 + size, turn * 8), given, turn)


@pytest.mark.parametrize("size", [5, 129_280])
def test_adjusted_rows_equal_the_cpus(size):
    """A30: every operation is one rounding to binary32 on the device as well."""
    rng = np.random.default_rng(size)
    rows = logits_of(8, size, 1)
    some = [np.sort(rng.choice(size, size // 2, replace=False)) for _ in rows]
    values = [rng.uniform(0.3, 3, size // 2).astype(np.float32) for _ in rows]
    given = [
        [Scaled(ids, factors), Added(ids[::2], -factors[::2])] + [Kept(ids)] * (row % 2)
        for row, (ids, factors) in enumerate(zip(some, values, strict=True))
    ]
    expected = CPU.adjust(rows, given)
    for name, kernels in DEVICE.items():
        found = kernels.adjust(torch.from_numpy(rows).cuda(), given)
        found = kernels.transfer.to_host(found)
        assert np.array_equal(found, expected, equal_nan=True), name


@pytest.mark.parametrize("name", DEVICE)
def test_bfloat16_logits_widen_exactly(name):
    rows = torch.from_numpy(logits_of(512, 3000, seed=2)).to(torch.bfloat16)
    expected, _ = CPU.quantise(rows.to(torch.float32).numpy(), policy())
    q, _ = DEVICE[name].quantise(rows.cuda(), policy())
    assert rows_of(DEVICE[name], q) == rows_of(CPU, expected)


def test_greedy_ids_only():
    rows = logits_of(200, 3000, seed=7)
    given = ProposalPolicy(Layout.IDS_ONLY, 1, 0.0)
    compare(rows, given, 7)


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
def test_rounds_equal_the_cpus(name, batch, size, given):
    """Ragged, sampled and greedy; what a bound leaves undecided is rare, never another token."""
    scores, rounds = rounds_of(batch, size, size, given)
    expected = CPU.verify(scores, rounds)
    found = DEVICE[name].verify(torch.from_numpy(scores).cuda(), rounds)
    decided = [
        (one, other)
        for one, other in zip(expected, found, strict=True)
        if UNDECIDED not in (one.status, other.status)
    ]
    assert len(decided) > 0.999 * batch - 1
    assert all(one == other for one, other in decided)


class Captured:
    """What a round computes between two waits, captured in one CUDA graph over fixed buffers."""

    def __init__(self, batch, depth, size):
        count = batch * (depth + 1)
        self.scores = torch.zeros(count, size, device="cuda")
        self.tokens = torch.zeros(count, dtype=torch.int64, device="cuda")
        self.rows = torch.arange(0, count, depth + 1, device="cuda")
        self.q = torch.zeros(batch, size, dtype=torch.int32, device="cuda")
        self.first = torch.zeros(batch, dtype=torch.int64, device="cuda")

    def run(self):
        measured = sampling.measure(self.scores, self.tokens)
        drawn = sampling.sample(self.scores, self.rows, self.q, self.first)
        return measured, sampling.lowest(self.scores), drawn

    def fill(self, seed):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.scores.normal_(generator=generator).mul_(3)
        self.tokens.random_(0, self.scores.shape[1], generator=generator)
        self.first.random_(0, 1 << 48, generator=generator)


def test_what_a_round_computes_is_captured_in_a_graph_and_replays_as_it_runs():
    captured = Captured(4, 5, 10_000)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            captured.run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = captured.run()
    for seed in range(20):
        captured.fill(seed)
        graph.replay()
        replayed = [each.clone() for each in out]
        eager = captured.run()
        assert all(torch.equal(one, other) for one, other in zip(replayed, eager, strict=True))


@pytest.mark.parametrize("name", DEVICE)
@pytest.mark.parametrize("given", [policy(), policy(support=32)])
def test_quantising_does_not_wait_for_the_device(name, given):
    logits = torch.randn(20, 5000, device="cuda")
    DEVICE[name].quantise(logits, given)  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        DEVICE[name].quantise(logits, given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", DEVICE)
def test_a_round_reads_back_a_few_numbers_a_row(name):
    scores, rounds = rounds_of(32, 3000, 9, depths=(5,))
    before = DEVICE[name].transfer.bytes_to_host
    DEVICE[name].verify(torch.from_numpy(scores).cuda(), rounds)
    assert DEVICE[name].transfer.bytes_to_host - before <= 32 * len(scores) + 8 * len(rounds)
