"""A rank's link: it waits in pieces, as its leader says, and what comes late is gone on with."""

from __future__ import annotations

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.kernels.shards.shard import Shard
from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.verifier.local import ProgramChannel
from draftwire.verifier.rank_client import RankClient
from draftwire.verifier.request import ClientRequest
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, Outcome
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 9
POLICY = ProposalPolicy(Layout.DENSE, 2, 1.0)
PROMPT = (1, 2, 3)


class Late(ProgramChannel):
    """Its answers come after so many waits that were in vain."""

    in_vain = 0

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        if self.in_vain:
            self.in_vain -= 1
            self._program.draft()
            raise TimeoutError("nothing yet")
        return super().receive_into(buffer, deadline)


def client_of(shard: Shard | None = None, *, audit: bool = True) -> RankClient:
    target = ToyTarget(mixed(V, 1), V)
    client = RankClient("127.0.0.1:1", target, shard, deadline=1e9, audit=audit)
    program = DrafterProgram(ToyDrafter(mixed(V, 2), V), DrafterConfig())
    client.connection.open_channel = lambda until: Late(program)
    return client


def ready() -> tuple[RankClient, ClientRequest, Late]:
    client = client_of()
    request = client.begin(5, 0, PROMPT, 77)
    assert client.ensure_connected() == "not tried again yet"
    client.may_connect = True
    assert client.ensure_connected() is None
    channel = client.connection.channel
    assert isinstance(channel, Late)
    return client, request, channel


def test_a_wait_goes_on_where_the_one_before_ended() -> None:
    client, request, channel = ready()
    channel.in_vain = 2
    client.ask(request, POLICY, 1e9)
    assert client.wait(request, 1e9) is None
    assert client.wait(request, 1e9) is None
    found = client.wait(request, 1e9)
    assert isinstance(found, Proposal) and len(found.tokens) == 2
    assert client.counters.round_trip.count == 1
    request.commit(Outcome.CORRECTION, 0, [(found.tokens[0] + 1) % V])


def test_what_is_given_up_is_lost_and_the_next_round_is_whole() -> None:
    client, request, channel = ready()
    channel.in_vain = 1
    client.ask(request, POLICY, 1e9)
    assert client.wait(request, 1e9) is None
    lost = client.give_up(request)
    assert isinstance(lost, Dropped) and lost.reason is DropReason.MISSED_DEADLINE
    request.commit(Outcome.TARGET_ONLY, 0, [4])
    client.ask(request, POLICY, 1e9)
    found = client.wait(request, 1e9)
    assert isinstance(found, Proposal) and found.first_position == len(PROMPT) + 1
    assert client.counters.drops[DropReason.STALE] > 0  # the late one, not used


def test_whole_qs_are_audited_where_they_come_and_shards_where_they_are_settled() -> None:
    assert client_of().config.audit and not client_of(audit=False).config.audit
    assert not client_of(Shard(V, 0, 5, 0, 2)).config.audit


def test_a_link_that_is_interrupted_asks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    client, request, channel = ready()
    client.ask(request, POLICY, 1e9)

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(channel, "receive_into", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.wait(request, 1e9)
    assert client.agreed is None
    request.commit(Outcome.TARGET_ONLY, 0, [4])
    assert client.ensure_connected() is None
    client.ask(request, POLICY, 1e9)
    assert isinstance(client.wait(request, 1e9), Proposal)
    assert request.generation == 2
