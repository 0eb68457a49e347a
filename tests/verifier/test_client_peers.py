"""Drafters that are not what they should be, limits of both sides, and skipped rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.errors import ConfigurationError, ProtocolError, TransportError
from draftwire.exact.words import ProposalWords
from draftwire.session.proposal import Proposal
from draftwire.session.reasons import DropReason
from draftwire.transport.channel import Channel, Part
from draftwire.transport.tcp import bound_address, listen
from draftwire.verifier.client import ClientRequest
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.miss import Drafted, MissReason
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import (
    LayoutSet,
    MessageType,
    Outcome,
    WireVersion,
)
from testing.harness.paths import drafting
from testing.harness.servers import serving
from testing.toys.models import ToyDrafter, ToyRequest, ToyTarget, constant, mixed
from tests.verifier.test_client import POLICY, PROMPT, Planned, V, pair_of_toys


def test_law_8_a_drafter_that_does_not_draw_from_its_q_is_caught() -> None:
    target, engine = pair_of_toys()
    with drafting("tcp", engine, target, source=lambda key: ProposalWords(key ^ 1)) as client:
        run = generate(target, client, PROMPT, Sampling(seed=1, max_tokens=30), POLICY)
        assert {e.kind for e in run} == {Kind.TARGET_ONLY}
    assert run.report.misses[DropReason.AUDIT_FAILED] >= 1
    assert run.report.verified == 0
    assert any("not drawn from the q" in note for note in run.report.notes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tokenizer_hash": b"x" * 32}, "tokenizer_hash"),
        ({"id_map_hash": b"x" * 32}, "id_map_hash"),
        ({"vocab_size": V + 1}, "vocab_size"),
    ],
)
def test_x43_another_identity_is_refused_with_the_field_named(
    change: dict[str, object], field: str
) -> None:
    target, engine = pair_of_toys()
    for name, value in change.items():
        setattr(engine, name, value)
    engine.table = mixed(engine.vocab_size, 1)
    with drafting("tcp", engine, target) as client:
        with pytest.raises(ProtocolError) as caught:
            client.connect()
        assert caught.value.field == field
        run = generate(target, client, PROMPT, Sampling(seed=1, max_tokens=5), POLICY)
        assert {e.kind for e in run} == {Kind.TARGET_ONLY}
        assert field in run.report.notes[0]


def test_x43_another_checkpoint_than_the_expected_one_is_refused() -> None:
    target, engine = pair_of_toys()
    with serving(DrafterProgram(engine, DrafterConfig())) as server:
        for identity, fits in ((engine.identity, True), (b"z" * 32, False)):
            with RemoteDrafter(
                server.address, target, deadline=20.0, draft_identity=identity
            ) as drafter:
                if fits:
                    drafter.connect()
                    continue
                with pytest.raises(ProtocolError) as caught:
                    drafter.connect()
                assert caught.value.field == "draft_identity"


def test_x43_versions_never_mix() -> None:
    target, engine = pair_of_toys()
    v1 = DrafterConfig(version=WireVersion.V1, layouts=LayoutSet.IDS_ONLY)
    for config, version in ((v1, WireVersion.V2), (DrafterConfig(), WireVersion.V1)):
        with (
            drafting("tcp", engine, target, config=config, version=version) as client,
            pytest.raises((ProtocolError, TransportError)),
        ):
            client.connect()


def test_x45_a_reply_limit_that_cannot_carry_the_reply_is_refused_before_any_allocation() -> None:
    """Dense, V = 151,936, K = 8 takes 4.9 MB a reply: a drafter that may send 1 MB refuses."""
    wide = 151_936
    target = ToyTarget(constant(1.0), wide)
    engine = ToyDrafter(constant(1.0), wide)
    config = DrafterConfig(max_reply_bytes=1 << 20)
    with drafting("tcp", engine, target, config=config) as client:
        with pytest.raises(ProtocolError) as caught:
            client.connect()
        assert caught.value.field == "max_reply_bytes"
    with drafting("tcp", engine, target) as client:
        assert client.connect().max_reply_bytes > 8 * 4 * wide


def test_a_policy_that_was_not_offered_is_a_named_miss() -> None:
    target, engine = pair_of_toys()
    config = DrafterConfig(layouts=LayoutSet.DENSE)
    with drafting("tcp", engine, target, config=config) as client:
        run = generate(target, client, PROMPT, Sampling(seed=1, max_tokens=5), POLICY)
        assert {e.kind for e in run} == {Kind.TARGET_ONLY}
        assert set(run.report.misses) == {MissReason.NOT_OFFERED}
        assert "does not offer" in run.report.notes[0]


def test_the_depth_is_clipped_to_what_was_agreed() -> None:
    target, engine = pair_of_toys()
    with drafting("tcp", engine, target, config=DrafterConfig(max_depth=2)) as client:
        run = generate(target, client, PROMPT, Sampling(seed=1, max_tokens=50), POLICY)
        assert len(list(run)) == 50
        assert len(run.report.proposed_by_position) == 2
        assert not run.report.misses


def test_sessions_over_the_limit_go_on_target_only() -> None:
    target, engine = pair_of_toys()
    config = DrafterConfig(max_sessions=2, max_slots=2)
    with drafting("tcp", engine, target, config=config) as client:
        runs = [
            generate(target, client, PROMPT, Sampling(seed=seed, max_tokens=20), POLICY)
            for seed in range(3)
        ]
        assert {len([next(run) for _ in range(19)]) for run in runs[:2]} == {19}
        assert {e.kind for e in runs[2]} == {Kind.TARGET_ONLY}
        assert set(runs[2].report.misses) == {MissReason.NO_SLOT}
        assert "no more sessions" in runs[2].report.notes[0]
        for run in runs[:2]:
            assert run.report.drafted_rounds > 0
            assert not run.report.misses
            run.close()


def test_v18_a_text_that_ends_on_an_unshared_id_costs_the_others_nothing() -> None:
    """The bonus is an id of the target's padding, which no COMMIT can carry: none is sent."""
    wide = ToyTarget(
        lambda context: [
            float(v == (V if context[0] == 9 and len(context) > 3 else 4)) for v in range(V + 1)
        ],
        V,
    )
    engine = ToyDrafter(constant(*[float(v == 4) for v in range(V)]), V)
    with drafting("tcp", engine, wide) as client:
        other = generate(wide, client, PROMPT, Sampling(seed=1, max_tokens=60), POLICY)
        next(other)
        run = generate(wide, client, (9, 1, 2), Sampling(seed=1, max_tokens=2), POLICY)
        assert [(e.token, e.kind) for e in run] == [(4, Kind.ACCEPTED), (V, Kind.BONUS)]
        assert len(list(other)) == 59
    assert not other.report.misses
    assert other.report.rounds == 12


def test_requests_that_the_target_refuses_to_open_leave_no_slot_taken() -> None:
    target, engine = pair_of_toys()
    config = DrafterConfig(max_sessions=2, max_slots=2)

    def refuse(prompt: Sequence[int], sampling: Sampling) -> ToyRequest:
        raise ConfigurationError("the target takes no such request")

    with drafting("tcp", engine, target, config=config) as client:
        opens, target.open = target.open, refuse  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(ConfigurationError, match="no such request"):
                generate(target, client, PROMPT, Sampling(seed=1), POLICY)
        target.open = opens  # type: ignore[method-assign]
        run = generate(target, client, PROMPT, Sampling(seed=1, max_tokens=20), POLICY)
        assert len(list(run)) == 20
    assert not run.report.misses


def test_a_pong_that_is_half_sent_ends_the_connection_and_not_the_drafting() -> None:
    """The drafter PINGs and then takes no bytes: what follows half a frame could not be read."""
    target, engine = pair_of_toys()
    channels: list[Stuck] = []

    class Stuck(Planned):
        pings = 0
        closed = False

        def send(self, parts: Sequence[Part], deadline: float) -> None:
            if bytes(parts[0])[5] == MessageType.PONG:
                raise TimeoutError("half of it is gone")
            super().send(parts, deadline)

        def receive_into(self, buffer: memoryview, deadline: float) -> int:
            if self.rounds == 2 and len(channels) == 1 and not self.pings:
                self.pings = 1
                ping = frame_bytes(encode_frame(WireVersion.V2, MessageType.PING, bytes(8)))
                buffer[: len(ping)] = ping
                return len(ping)
            return super().receive_into(buffer, deadline)

        def close(self) -> None:
            self.closed = True
            super().close()

    def through(channel: Channel) -> Channel:
        channels.append(Stuck(channel, {}))
        return channels[-1]

    with drafting("colocated", engine, target, through=through) as client:
        run = generate(target, client, PROMPT, Sampling(seed=7, max_tokens=60), POLICY)
        assert len(list(run)) == 60
    assert run.report.misses == {DropReason.DISCONNECTED: 1}
    assert channels[0].closed
    assert channels[0].rounds == 2
    assert channels[1].rounds > 5


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_deadlines_are_finite_and_positive(seconds: float) -> None:
    target = ToyTarget(mixed(V, 1), V)
    with pytest.raises(ConfigurationError, match="deadline must be finite"):
        RemoteDrafter("127.0.0.1:1", target, deadline=seconds)
    with pytest.raises(ConfigurationError, match="connect_timeout must be finite"):
        RemoteDrafter("127.0.0.1:1", target, connect_timeout=seconds)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "::1:7", "host:x", "host:70000"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError):
        RemoteDrafter(text, ToyTarget(mixed(V, 1), V))


def test_a_peer_that_accepts_and_says_nothing_costs_the_connect_timeout_at_most() -> None:
    listener = listen("127.0.0.1", 0)
    target = ToyTarget(mixed(V, 1), V)
    drafter = RemoteDrafter(bound_address(listener), target, connect_timeout=0.1)
    began = time.monotonic()
    run = generate(target, drafter, PROMPT, Sampling(seed=1, max_tokens=10), POLICY)
    assert len(list(run)) == 10
    assert time.monotonic() - began < 2.0
    assert "HELLO" in run.report.notes[0]
    drafter.close()
    listener.close()


def test_e52_no_sessions_then_one() -> None:
    target, engine = pair_of_toys()
    with drafting("tcp", engine, target) as client:
        client.connect()
        time.sleep(0.05)
        assert engine.batches == [1]  # the server's warm-up, with no session of a verifier's
        run = generate(target, client, PROMPT, Sampling(seed=1, max_tokens=20), POLICY)
        assert len(list(run)) == 20
        assert not run.report.misses


def test_d7_q_is_the_same_after_verification_as_when_it_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing scales a row in place: the proposal's bytes are the same before and after."""
    target, engine = pair_of_toys()
    kept: list[tuple[Proposal, list[bytes]]] = []
    propose = ClientRequest.propose

    def keeping(request: ClientRequest, policy: ProposalPolicy) -> Drafted:
        result = propose(request, policy)
        if isinstance(result, Proposal):
            kept.append((result, [row.counts.tobytes() for row in result.rows]))
        return result

    monkeypatch.setattr(ClientRequest, "propose", keeping)
    with drafting("tcp", engine, target) as client:
        list(generate(target, client, PROMPT, Sampling(seed=1, max_tokens=40), POLICY))
    assert kept
    for proposal, before in kept:
        assert [row.counts.tobytes() for row in proposal.rows] == before


@pytest.mark.parametrize("skipped", range(4))
@pytest.mark.parametrize("on", [False, True])
def test_skipped_rounds_are_rounds_of_the_session(skipped: int, on: bool):
    """A reader of the session, in mid-round or between rounds, sees every round and token."""
    target, engine = pair_of_toys()
    with drafting("colocated", engine, target) as client:
        request = client.open(PROMPT, 7)
        assert isinstance(request.propose(POLICY), Proposal)
        request.commit(Outcome.CORRECTION, 0, [0])
        for number in range(skipped):
            request.skip()
            assert request.round == 2 + number
            if number < skipped - 1 or not on:
                request.commit(Outcome.TARGET_ONLY, 0, [number])
        if on and skipped:
            with pytest.raises(ProtocolError):
                request.propose(POLICY)
            with pytest.raises(ProtocolError):
                request.skip()
            request.commit(Outcome.TARGET_ONLY, 0, [skipped - 1])
        assert (request.generation, request.round) == (1, 1 + skipped)
        assert request.asking.tokens == (*PROMPT, 0, *range(skipped))
        proposal = request.propose(POLICY)
        assert isinstance(proposal, Proposal)
        assert proposal.first_position == len(PROMPT) + 1 + skipped
        with pytest.raises(ProtocolError):
            request.skip()


def test_a_skipped_round_is_ended_by_the_target_alone():
    target, engine = pair_of_toys()
    with drafting("colocated", engine, target) as client:
        request = client.open(PROMPT, 7)
        request.skip()
        with pytest.raises(ValueError, match="cannot be"):
            request.commit(Outcome.BONUS, 1, [0])
        request.commit(Outcome.TARGET_ONLY, 0, [0])
        with pytest.raises(ProtocolError):
            request.commit(Outcome.TARGET_ONLY, 0, [0])
        assert request.asking.tokens == (*PROMPT, 0)
