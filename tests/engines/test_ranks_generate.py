"""Two drafter ranks and two target ranks in processes of their own write one text, come what may.

Which rounds fail depends on when a process dies, so a failing run's text need not be that of an
undisturbed one; but it is one text on all ranks, of the target's law.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, embedded_folder
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from tests.engines.rank_programs import Ranks, context, drafter_rank, ranks, verifier_rank

PROMPT = [5, 9, 200, 31, 77]
TOKENS = 16
CONTEXT = 1024


@dataclass
class Machines:
    """The ranks of a target, and what they have been told."""

    target: Ranks
    delay: Any  # how long the second rank dawdles before it scores, and before its link asks
    told: bool = False
    address: str = ""

    def connect(
        self,
        addresses: list[str],
        *,
        linked: bool,
        deadline: float = 20.0,
        ownership: str = "VOCABULARY",
        breaker: bool = False,
    ) -> None:
        """Where the drafter is: a link a rank, or one for the leader."""
        if self.told:
            self.target.tell(0, None)
        for rank in range(len(self.target.processes)):
            links = addresses if linked else None
            told = {"addresses": links, "deadline": deadline, "ownership": ownership}
            self.target.tell(rank, {**told, "breaker": breaker})
        self.told = True
        self.address = "" if linked else addresses[0]

    def write(self, **wish: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
        """One text, the same on both ranks; returns it and the leader's report."""
        self.begin(**wish)
        return self.end()

    def begin(self, **wish: Any) -> None:
        defaults = {"address": self.address, "prompt": PROMPT, "seed": 7, "tokens": TOKENS}
        self.target.tell(0, {**defaults, **wish})

    def end(self) -> tuple[tuple[int, ...], dict[str, Any]]:
        text, report = self.target.hear(0)
        followed, rounds = self.target.hear(1)
        assert followed == text  # T34: no rank has another text, though only one holds the key
        assert len(rounds) == report["rounds"]
        assert sum(accepted for _, accepted in rounds) >= report["accepted"]
        assert sum(depth > 0 for depth, _ in rounds) == report["drafted_rounds"]
        return text, report


@contextmanager
def drafter(linked: bool) -> Iterator[tuple[Ranks, list[str]]]:
    with ranks(drafter_rank, 2, linked) as group:
        yield group, [group.hear(rank, 200) for rank in range(2 if linked else 1)]


@pytest.fixture(scope="module")
def target() -> Iterator[Machines]:
    delay = context().Array("d", 2)
    with ranks(verifier_rank, 2, delay) as group:
        assert [group.hear(rank, 200) for rank in range(2)] == ["ready"] * 2
        yield Machines(group, delay)


@dataclass
class Both:
    """A target's ranks and a drafter's, connected."""

    target: Machines
    drafter: Ranks
    addresses: list[str]
    linked: bool
    owned: bool = False  # whole q's, on a link of each rank

    def connect(self, **how: Any) -> None:
        ownership = "REQUESTS" if self.owned else "VOCABULARY"
        addresses = self.addresses * 2 if self.owned else self.addresses
        linked = self.linked or self.owned
        self.target.connect(addresses, linked=linked, **{"ownership": ownership, **how})


@pytest.fixture(scope="module", params=[False, True], ids=["leader", "links"])
def both(target: Machines, request: pytest.FixtureRequest) -> Iterator[Both]:
    """The same ranks of a target, with the leader's connection, then with a link each."""
    with drafter(request.param) as (group, addresses):
        target.connect(addresses, linked=request.param)
        yield Both(target, group, addresses, request.param)


@pytest.fixture
def machines(both: Both) -> Machines:
    return both.target


@pytest.fixture(scope="module")
def one() -> Callable[..., tuple[int, ...]]:
    """What one process writes from the same seed; over ranks q follows no processors."""
    engine = HfTargetEngine.from_folder(embedded_folder("target"))
    engine.end_tokens = frozenset()
    drafting = HfDraftEngine.from_folder(embedded_folder("drafter"))

    def write(**processors: Any) -> tuple[int, ...]:
        sampling = Sampling(temperature=1.0, seed=7, max_tokens=TOKENS, **processors)
        policy = ProposalPolicy(Layout.DENSE, 3, 1.0)
        local = LocalDrafter(DrafterProgram(drafting, DrafterConfig()), engine, mirror=False)
        with local, generate(engine, local, PROMPT, sampling, policy) as generation:
            return tuple(emission.token for emission in generation)

    return write


@pytest.fixture(scope="module")
def alone(one: Callable[..., tuple[int, ...]]) -> tuple[int, ...]:
    return one()


def test_two_and_two_ranks_write_what_one_process_writes(
    machines: Machines, alone: tuple[int, ...]
) -> None:
    text, report = machines.write()
    again, repeated = machines.write()
    assert text == again == alone
    assert report["accepted"] == repeated["accepted"] > 0
    assert report["misses"] == {}
    assert machines.write(seed=8)[0] != text


def test_t33_a_slow_rank_of_the_target_changes_nothing(
    machines: Machines, alone: tuple[int, ...]
) -> None:
    """It comes late to every round; the reply is there first, and is used."""
    machines.delay[0] = 0.1
    began = time.monotonic()
    slow, report = machines.write()
    machines.delay[0] = 0.0
    assert time.monotonic() - began > 0.1 * report["rounds"]
    assert slow == alone and report["misses"] == {}


def test_t35_at_the_end_of_the_context_all_ranks_decide_alike(both: Both) -> None:
    """Lengths max-K .. max: the same decision to draft on both ranks, and no rank waits."""
    for room in (2, 3) if both.linked else range(1, 5):
        prompt = (PROMPT * CONTEXT)[: CONTEXT - room]
        text, _ = both.target.write(prompt=prompt, tokens=9)
        assert 1 <= len(text) <= room
    if not both.linked:
        owned(both).connect()
        text, _ = both.target.write(prompt=(PROMPT * CONTEXT)[: CONTEXT - 3], tokens=9)
        both.connect()
        assert 1 <= len(text) <= 3


def test_processors_of_the_target_over_ranks(
    both: Both, one: Callable[..., tuple[int, ...]]
) -> None:
    """The text of one process, whatever each rank owns; the second request has another owner."""
    for ownership in ("VOCABULARY",) if both.linked else ("VOCABULARY", "REQUESTS"):
        both.target.connect(both.addresses, linked=both.linked, ownership=ownership)
        for processors in (
            {"top_k": 20, "repetition_penalty": 1.3},
            {"top_k": 40, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 0.9},
        ):
            text, report = both.target.write(**processors)
            assert text == one(**processors)
            assert report["accepted"] > 0


def test_qs_that_the_leader_passes_on_cross_as_ids_and_counts_and_to_their_owner_alone(
    both: Both,
) -> None:
    """Of a round of three sparse q's (32 ids): 800 bytes, where 12 V were broadcast before."""
    if both.linked:
        return
    rows = 3 * (8 + 32 * 8)
    texts, owner_bytes = [], []
    for parallelism in ("VOCABULARY", "REQUESTS", "REQUESTS"):
        both.target.connect(both.addresses, linked=False, ownership=parallelism)
        for _ in range(1 if parallelism == "VOCABULARY" else 2):  # of each rank, one request
            text, report = both.target.write(support=32)
            assert report["accepted"] > 0 and report["misses"] == {}
            texts.append(text)
            rounds = report["rounds"]
            before = 12 * report["vocab_size"] * report["drafted_rounds"]
            crossed = report["broadcast_bytes"] + report["owner_bytes"]
            assert crossed < before / 5
            if parallelism == "VOCABULARY":
                assert report["owner_bytes"] == 0
                assert report["broadcast_bytes"] <= rounds * (rows + 1000)
            else:
                owner_bytes.append(report["owner_bytes"])
                assert report["broadcast_bytes"] <= rounds * 1000  # no q is in it
                assert report["owner_bytes"] <= rounds * rows
    assert len(set(texts)) == 1
    assert sorted(map(bool, owner_bytes)) == [False, False, True, True]
    both.target.connect(both.addresses, linked=False)


def test_greedy_ranks_write_what_the_target_alone_writes(both: Both) -> None:
    drafted, report = both.target.write(temperature=0.0)
    both.target.connect(["127.0.0.1:9"] * 2, linked=False)
    without, lost = both.target.write(temperature=0.0)
    assert drafted == without
    assert report["drafted_rounds"] > 0 and lost["drafted_rounds"] == 0


def test_t33_a_deadline_is_the_leaders_alone(both: Both) -> None:
    """Too short for any reply: every round falls back, on both ranks, and the text is whole."""
    both.target.connect(both.addresses, linked=both.linked, deadline=1e-4)
    text, report = both.target.write(deadline=1e-4)
    assert len(text) == TOKENS
    assert report["drafted_rounds"] < report["rounds"] and report["misses"]


def owned(both: Both) -> Both:
    """The same machines, the target request-sharded, with a link of each rank for whole q's."""
    return replace(both, owned=True)


def test_requests_of_each_rank_over_a_link_of_its_own(
    both: Both, alone: tuple[int, ...], one: Callable[..., tuple[int, ...]]
) -> None:
    """The text of one process, for a request of each rank; a drafter of shards is refused."""
    ways = owned(both)
    ways.connect()
    if both.linked:
        text, report = both.target.write()
        assert len(text) == TOKENS and report["drafted_rounds"] == 0
        assert set(report["misses"]) == {"no_connection"}
        return
    reports = []
    for _ in range(2):
        text, report = both.target.write()
        assert text == alone and report["misses"] == {} and report["accepted"] > 0
        reports.append(report)
    assert reports[0]["bytes_received"] == reports[1]["bytes_received"] > 0  # told by the owner
    processors = {"top_k": 20, "repetition_penalty": 1.3}
    assert both.target.write(**processors)[0] == one(**processors)


def test_t33_a_link_that_asks_late_is_waited_for_until_the_leader_says_so(
    both: Both, alone: tuple[int, ...]
) -> None:
    """Late by less than the deadline: used. By more: used or not, but on both ranks alike."""
    ways = both if both.linked else owned(both)
    ways.target.delay[1] = 0.1
    ways.connect()
    text, report = both.target.write()
    assert text == alone and report["misses"] == {}
    ways.connect(deadline=0.02)
    text, report = both.target.write()
    ways.target.delay[1] = 0.0
    assert len(text) == TOKENS


@pytest.mark.parametrize("whole", [False, True])
def test_a_whole_proposal_of_another_context_is_dropped_on_every_rank(
    both: Both, whole: bool
) -> None:
    """Looks of odd numbers are after a proposal; that round alone is target-only."""
    if whole and both.linked:
        return
    ways = owned(both) if whole else both
    ways.connect()
    for _ in range(2):  # of whole q's, one request of each rank
        text, report = both.target.write(changes=3)
        assert len(text) == TOKENS
        assert report["misses"] == {"wrong_context": 1}
        assert report["drafted_rounds"] > 0  # before it and after it
    text, report = both.target.write(changes=2)  # between rounds
    assert len(text) == TOKENS and report["misses"] == {}


def test_the_leaders_breaker_decides_for_all_ranks(both: Both) -> None:
    ways = both if both.linked else owned(both)
    ways.connect(breaker=True)
    text, report = both.target.write()
    assert len(text) == TOKENS and report["drafted_rounds"] > 0
    assert set(report["misses"]) == {"baseline", "breaker_open", "request_breaker_open"}


def test_t33_a_rank_of_the_target_that_hangs_delays_one_decision(both: Both) -> None:
    """Past every deadline; when it goes on, all ranks go on with the same text."""
    both.connect(deadline=0.2)
    both.target.begin(pause_at=5, deadline=0.2)
    assert both.target.target.hear(0) == "paused"
    with both.target.target.stopped(1):
        both.target.target.tell(0, "go on")
        time.sleep(0.5)  # so long it hangs; nothing below depends on how long that is
        assert not both.target.target.pipes[0].poll()  # no rank goes on alone
    text, _ = both.target.end()
    assert len(text) == TOKENS


@pytest.mark.parametrize("rank", [0, 1])
def test_t37_a_drafter_rank_that_hangs_costs_the_deadline_and_drafts_again(
    both: Both, rank: int
) -> None:
    """No rank of the target hangs with it; when it goes on, so does drafting."""
    ways = both if rank or both.linked else owned(both)
    ways.connect(deadline=0.5)
    both.target.begin(pause_at=5, deadline=0.5)
    assert both.target.target.hear(0) == "paused"
    with both.drafter.stopped(rank):
        both.target.target.tell(0, "go on")
        text, report = both.target.end()
    assert len(text) == TOKENS and report["misses"]["missed_deadline"] > 0
    ways.connect()
    assert both.target.write()[1]["accepted"] > 0


def kill(both: Both, rank: int) -> None:
    """In the middle of a text: both ranks of the target fall back, together, and go on."""
    both.connect()
    both.target.begin(pause_at=5)
    assert both.target.target.hear(0) == "paused"
    both.drafter.kill(rank)
    if rank == 0:
        assert both.drafter.hear(1) == "the leader is gone"
    both.target.target.tell(0, "go on")
    text, report = both.target.end()
    assert len(text) == TOKENS
    assert report["accepted"] > 0  # drafting went well until then
    assert report["misses"]


def test_t34_a_drafter_rank_that_is_killed_costs_no_text(both: Both) -> None:
    """The last test of this drafter."""
    kill(both, 1)


@pytest.mark.parametrize("way", ["leader", "links", "owned"])
def test_t34_a_drafters_leader_that_is_killed_costs_no_text(target: Machines, way: str) -> None:
    with drafter(way == "links") as (group, addresses):
        kill(Both(target, group, addresses, way == "links", way == "owned"), 0)


def test_a_rank_of_the_target_that_dies_ends_the_text_on_all_others(target: Machines) -> None:
    """One typed error on each survivor, at once; the last test of these ranks."""
    target.connect(["127.0.0.1:9"], linked=False)
    target.begin(pause_at=5)
    assert target.target.hear(0) == "paused"
    target.target.kill(0)
    assert target.target.hear(1) == "TransportError"


def test_four_ranks_write_one_text_until_one_dies() -> None:
    with ranks(verifier_rank, 4, context().Array("d", 2)) as group:
        assert [group.hear(rank, 200) for rank in range(4)] == ["ready"] * 4
        machines = Machines(group, None)
        machines.connect(["127.0.0.1:9"], linked=False)
        machines.begin(temperature=0.0)
        texts = [group.hear(rank)[0] for rank in range(4)]
        assert len(texts[0]) == TOKENS and len(set(texts)) == 1
        machines.begin(pause_at=5)
        assert group.hear(0) == "paused"
        group.kill(3)
        group.tell(0, "go on")
        assert [group.hear(rank) for rank in range(3)] == ["TransportError"] * 3
