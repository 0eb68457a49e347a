"""Transcripts of both roles, in any split; what ends a link, and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from draftwire.errors import ProtocolError, ProtocolErrorCode, RemoteError
from draftwire.session.link import AgreedEvent, Alive, Closed, Event, Link
from draftwire.session.link_states import LinkState
from draftwire.session.proposal import Proposal, Received
from draftwire.wire import codec
from draftwire.wire.frames import encode_frame
from draftwire.wire.messages import (
    Cancel,
    Complete,
    ErrorMessage,
    Message,
    Ping,
    Pong,
    Reply,
    Step,
)
from draftwire.wire.registry import LayoutSet, MessageType, Outcome, Role, WireVersion
from testing.harness.joined import IDS_ONLY, SPARSE, V2, hello
from testing.harness.linked import LinkedPair

CODE = ProtocolErrorCode


def pair(layouts: LayoutSet = V2) -> tuple[Link, Link]:
    return Link(hello(Role.VERIFIER, layouts), 0.0), Link(hello(Role.DRAFTER, layouts), 0.0)


def taken(link: Link) -> bytes:
    return b"".join(link.outgoing())


def fed(link: Link, data: bytes, now: float = 0.0, size: int = 0) -> list[Event]:
    """The events of ``data``, fed in pieces of ``size`` bytes (0: whole), views copied away."""
    events: list[Event] = []
    for begin in range(0, len(data), size or max(len(data), 1)):
        piece = data[begin : begin + size] if size else data
        events += [owned(event) for event in link.feed(piece, now)]
    return events


def owned(event: Event) -> Event:
    """The event without views into the reader's buffer."""
    if isinstance(event, Received) and isinstance(event.message, Reply):
        rows = event.message.rows
        rows = replace(rows, body=bytes(rows.body))
        return replace(event, message=replace(event.message, rows=rows))
    if isinstance(event, Received) and isinstance(event.message, Step):
        return replace(event, message=replace(event.message, hidden=bytes(event.message.hidden)))
    return event


def agreed_pair(layouts: LayoutSet = V2) -> tuple[Link, Link]:
    pair = LinkedPair(layouts)
    pair.carry()
    assert all(isinstance(events[0], AgreedEvent) for events in pair.events)
    return pair.links


def comparable(event: Event) -> object:
    """Errors are equal when their code and field are."""
    if isinstance(event, Closed) and event.error is not None:
        return (type(event.error), event.error.code, event.error.field)
    return event


def frame(message: Message, version: WireVersion = WireVersion.V2) -> bytes:
    return b"".join(encode_frame(version, codec.message_type(message), *codec.encode(message)))


# HELLO


def test_p6_the_verifier_speaks_first_and_both_agree_on_the_same():
    verifier, drafter = pair()
    drafter.start()
    assert taken(drafter) == b""
    verifier.start()
    (theirs,) = fed(drafter, taken(verifier))
    (ours,) = fed(verifier, taken(drafter))
    assert isinstance(ours, AgreedEvent) and ours == theirs
    assert verifier.agreed == drafter.agreed
    assert verifier.state is drafter.state is LinkState.AGREED
    assert (verifier.role, drafter.role) == (Role.VERIFIER, Role.DRAFTER)
    assert drafter.theirs == hello(Role.VERIFIER)


FIELDS: dict[str, Any] = {
    "vocab_size": 9,
    "tokenizer_hash": b"t" * 32,
    "id_map_hash": b"m" * 32,
    "q_semantic": "other",
    "rng_abi": "other",
    "verifier_semantic": "other",
    "precision": "other",
    "layouts": LayoutSet.DENSE,
}


@pytest.mark.parametrize("field", FIELDS)
def test_x43_a_refused_hello_names_the_field_to_both(field: str):
    mine = hello(Role.VERIFIER)
    if field == "layouts":
        mine = replace(mine, layouts=LayoutSet.SPARSE)
    verifier = Link(mine, 0.0)
    drafter = Link(replace(hello(Role.DRAFTER), **{field: FIELDS[field]}), 0.0)
    verifier.start()
    (there,) = fed(drafter, taken(verifier))
    (here,) = fed(verifier, taken(drafter))
    for event in (there, here):
        assert isinstance(event, Closed) and event.error is not None
        assert (event.error.code, event.error.field) == (CODE.HELLO_REFUSED, field)
    assert isinstance(here, Closed) and isinstance(here.error, RemoteError)
    assert verifier.closed and drafter.closed
    assert taken(verifier) == taken(drafter) == b""


@pytest.mark.parametrize("verifiers", [LayoutSet.IDS_ONLY, V2])
def test_p5_nobody_upgrades_or_downgrades(verifiers: LayoutSet):
    drafters = V2 if verifiers is LayoutSet.IDS_ONLY else LayoutSet.IDS_ONLY
    verifier = Link(hello(Role.VERIFIER, verifiers), 0.0)
    drafter = Link(hello(Role.DRAFTER, drafters), 0.0)
    verifier.start()
    (event,) = fed(drafter, taken(verifier))
    assert isinstance(event, Closed) and event.error is not None
    assert event.error.code is CODE.BAD_VERSION
    (event,) = fed(verifier, taken(drafter))
    assert isinstance(event, Closed) and verifier.closed


def test_two_of_one_role_do_not_agree():
    one, other = Link(hello(Role.VERIFIER), 0.0), Link(hello(Role.VERIFIER), 0.0)
    one.start()
    other.start()
    (event,) = fed(other, taken(one))
    assert isinstance(event, Closed) and event.error is not None
    assert event.error.field == "role"


def test_p6_nothing_may_come_before_both_hellos():
    verifier, drafter = pair()
    with pytest.raises(ProtocolError):
        verifier.send(Ping(1))
    (event,) = fed(drafter, frame(Ping(1)))
    assert isinstance(event, Closed) and event.error is not None
    assert event.error.code is CODE.UNEXPECTED_MESSAGE


def test_a_third_hello_ends_the_link():
    _, drafter = agreed_pair()
    (event,) = fed(drafter, frame(hello(Role.VERIFIER)))
    assert isinstance(event, Closed) and event.error is not None
    assert event.error.code is CODE.UNEXPECTED_MESSAGE


# a transcript of both roles


def transcript(layouts: LayoutSet) -> tuple[bytes, bytes, list[tuple[int, ...]]]:
    """All bytes of three rounds in each direction, and the proposals."""
    pair = LinkedPair(layouts)
    pair.carry()
    policy = IDS_ONLY if layouts is LayoutSet.IDS_ONLY else SPARSE
    verifier, session = pair.verifier.link, pair.open()
    proposals = []
    for accepted in range(3):
        verifier.send(session.ask(policy, 0.0, 1.0))
        verifier.ping(accepted, 0.0)
        pair.carry()
        proposal = pair.results[-1]
        assert isinstance(proposal, Proposal) and len(pair.results) == accepted + 1
        proposals.append(proposal.tokens)
        session.commit(accepted, Outcome.CORRECTION, (proposal.tokens[accepted] + 1) % 7)
    for message in session.finish():
        verifier.send(message)
    pair.carry()
    return bytes(pair.sent[0]), bytes(pair.sent[1]), proposals


@pytest.mark.parametrize("layouts", [V2, LayoutSet.IDS_ONLY], ids=["v2", "v1"])
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_p4_any_split_of_a_transcript_gives_the_same_events(
    layouts: LayoutSet, role: Role, size: int
):
    there, back, _ = transcript(layouts)
    data = there if role is Role.DRAFTER else back
    results = []
    for pieces in (0, size):
        link = Link(hello(role, layouts), 0.0)
        link.start()
        events = fed(link, data, 1.0, pieces)
        results.append((events, taken(link), link.state, link.received))
    assert results[0] == results[1]
    assert results[0][2] is LinkState.AGREED
    kinds = [type(e.message) for e in results[0][0] if isinstance(e, Received)]
    if role is Role.VERIFIER:
        assert kinds == [Reply, Complete] * 3
    else:
        assert kinds[:3] == [Step] * 3 and kinds[-1] is Cancel


def test_the_same_calls_give_the_same_bytes():
    assert transcript(V2) == transcript(V2)


@pytest.mark.parametrize("role", Role)
def test_p4_every_changed_bit_of_a_transcript_gives_the_same_error_in_any_split(role: Role):
    """A flipped bit in every fifth byte: the same events and one error, whole or byte by byte."""
    there, back, _ = transcript(V2)
    data = there if role is Role.DRAFTER else back
    for index in range(0, len(data), 5):
        changed = bytearray(data)
        changed[index] ^= 1 << (index % 8)
        outcomes = []
        for size in (0, 1):
            link = Link(hello(role), 0.0)
            link.start()
            events = [comparable(event) for event in fed(link, bytes(changed), 0.0, size)]
            outcomes.append((events, taken(link), link.closed))
        assert outcomes[0] == outcomes[1], index
        assert outcomes[0][2], index  # a checksum covers every byte
        errors = [event for event in outcomes[0][0] if isinstance(event, tuple)]
        assert len(errors) == 1


# what ends a link


@pytest.mark.parametrize(
    ("receiver", "message"),
    [
        (Role.VERIFIER, Cancel(1, 1)),
        (Role.DRAFTER, Complete(1, 0, 1, 1, 1, 3, b"x" * 16, 0, 0, 0)),  # type: ignore[arg-type]
    ],
)
def test_a_message_of_the_wrong_side_ends_the_link(receiver: Role, message: Message):
    verifier, drafter = agreed_pair()
    link = verifier if receiver is Role.VERIFIER else drafter
    (event,) = fed(link, frame(message))
    assert isinstance(event, Closed) and event.error is not None
    assert event.error.code is CODE.UNEXPECTED_MESSAGE
    assert link.sent[MessageType.ERROR] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        bytes(range(256)),
    ],
    ids=["http", "pickle", "bytes"],
)
@pytest.mark.parametrize("early", [True, False])
def test_x40_another_program_gets_one_bounded_error(data: bytes, early: bool):
    drafter = Link(hello(Role.DRAFTER), 0.0) if early else agreed_pair()[1]
    (event,) = fed(drafter, data)
    assert isinstance(event, Closed) and event.error is not None
    assert event.error.code is CODE.BAD_MAGIC
    out = taken(drafter)
    assert len(out) < 100
    assert fed(drafter, data) == [] and taken(drafter) == b""
    with pytest.raises(ProtocolError):
        drafter.send(Ping(1))


def test_the_peers_error_about_the_connection_is_not_answered():
    verifier, _ = agreed_pair()
    (event,) = fed(verifier, frame(ErrorMessage(CODE.BAD_FIELD, field="slot")))
    assert isinstance(event, Closed) and isinstance(event.error, RemoteError)
    assert (event.error.code, event.error.field) == (CODE.BAD_FIELD, "slot")
    assert taken(verifier) == b""


def test_an_error_about_a_session_leaves_the_link_up():
    verifier, _ = agreed_pair()
    (event,) = fed(verifier, frame(ErrorMessage(CODE.UNKNOWN_PREFIX, 1, 1, 1)))
    assert isinstance(event, Received)
    assert not verifier.closed


def test_the_end_of_the_stream():
    verifier, drafter = agreed_pair()
    assert verifier.finished() == Closed(None)
    assert verifier.closed
    assert verifier.finished() == Closed(None)
    fed(drafter, frame(Ping(1))[:-1])
    event = drafter.finished()
    assert event.error is not None and event.error.code is CODE.TRUNCATED


def test_closing_here_keeps_what_is_outgoing():
    verifier, _ = agreed_pair()
    verifier.send(Cancel(1, 1))
    verifier.close()
    assert taken(verifier) == frame(Cancel(1, 1))
    assert verifier.closed


# PING


def test_ping_and_pong():
    verifier, drafter = agreed_pair()
    verifier.ping(7, 10.0)
    assert fed(drafter, taken(verifier), 11.0) == []
    assert drafter.heard_at == 11.0
    pong = taken(drafter)
    assert pong == frame(Pong(7))
    assert fed(verifier, pong, 12.5) == [Alive(2.5)]
    assert fed(verifier, pong, 13.0) == []  # once more, or never asked for: no event, no error
    assert verifier.heard_at == 13.0


def test_the_version_of_frames_is_that_of_hello():
    for layouts, version in ((V2, WireVersion.V2), (LayoutSet.IDS_ONLY, WireVersion.V1)):
        verifier, _ = agreed_pair(layouts)
        verifier.send(Ping(1))
        assert taken(verifier) == frame(Ping(1), version)
