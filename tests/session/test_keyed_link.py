"""Links with a key: transcripts, tampering, replay, and a key on one side only."""

from __future__ import annotations

import pytest

from draftwire.errors import ProtocolErrorCode, RemoteError
from draftwire.session.link import Closed, Link
from draftwire.session.link_states import LinkState
from draftwire.session.proposal import Proposal, Received
from draftwire.session.session_table import SessionTable
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.codec import encode
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.registry import FRAME_MAC_BYTES, MessageType, Outcome, Role
from spec.oracle import keys, messages
from spec.oracle.frames import read_frames
from testing.harness.joined import KEY as PROPOSAL_KEY
from testing.harness.joined import PROMPT, SPARSE, HashDrafter, hello
from testing.harness.linked import NONCES, LinkedPair

CODE = ProtocolErrorCode
KEY = bytes(range(32))
FRAME = 20 + 32  # a CHALLENGE or a PROOF


class Wire(LinkedPair):
    """Both ends with a key. flip: (0: there, 1: back), which byte is changed on its way."""

    def __init__(
        self,
        keys: tuple[bytes, bytes] = (KEY, KEY),
        nonces: tuple[bytes, bytes] = NONCES,
        flip: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(keys=keys, nonces=nonces)
        self.flip = flip
        self.session: VerifierSession | None = None

    def on_way(self, sender: int, data: bytes) -> bytes:
        changed = bytearray(data)
        if self.flip is not None and self.flip[0] == sender:
            index = self.flip[1] - len(self.sent[sender])
            if 0 <= index < len(changed):
                changed[index] ^= 0x40
        return bytes(changed)

    def ask(self) -> None:
        """One more round."""
        assert self.links[0].agreed is not None
        if self.session is None:
            self.session = self.open()
        before = len(self.results)
        self.links[0].send(self.session.ask(SPARSE, 0.0, 1.0))
        self.carry()
        for result in self.results[before:]:
            if isinstance(result, Proposal):
                self.session.commit(0, Outcome.CORRECTION, (result.tokens[0] + 1) % 7)

    def run(self, rounds: int = 2) -> Wire:
        self.carry()
        for _ in range(rounds):
            if not all(link.state is LinkState.AGREED for link in self.links):
                break
            self.ask()
        return self

    def failure(self, side: int) -> tuple[type, ProtocolErrorCode, str | None]:
        closed = [event for event in self.events[side] if isinstance(event, Closed)]
        assert len(closed) == 1 and closed[0].error is not None
        error = closed[0].error
        return type(error), error.code, error.field


def test_a_transcript_is_as_the_oracle_reads_it() -> None:
    """P20-P22: handshake in clear, everything after it under the MAC of its direction."""
    wire = Wire().run()
    assert [link.state for link in wire.links] == [LinkState.AGREED] * 2
    assert wire.session is not None and len(wire.session.tokens) == len(PROMPT) + 2
    limits = {
        name: getattr(wire.links[0].agreed, name)
        for name in ("max_step_bytes", "max_reply_bytes", "vocab_size")
    }
    types = []
    purposes = (keys.VERIFIER_FRAMES, keys.DRAFTER_FRAMES)
    for stream, purpose in zip(wire.sent, purposes, strict=True):
        opening = [
            *read_frames(bytes(stream[:FRAME]), 2, messages.BOUNDS_BEFORE_NONCE),
            *read_frames(bytes(stream[FRAME : 2 * FRAME]), 2, messages.BOUNDS_BEFORE_PROOF),
        ]
        made = keys.made(KEY, purpose, 2, *NONCES)
        later = keys.read_sealed_frames(
            bytes(stream[2 * FRAME :]), 2, messages.bounds(limits), made
        )
        types.append([frame.type for frame in (*opening, *later)])
        proof = purpose - keys.VERIFIER_FRAMES + keys.VERIFIER_PROOF
        assert opening[1].payload == keys.made(KEY, proof, 2, *NONCES)
    assert types[0] == ["CHALLENGE", "PROOF", "HELLO", "STEP", "STEP"]
    assert types[1] == ["CHALLENGE", "PROOF", "HELLO", *["REPLY", "COMPLETE"] * 2]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("receiver", [0, 1])
def test_p4_any_split_gives_the_same_events(receiver: int, size: int) -> None:
    whole = Wire().run()
    assert all(link.state is LinkState.AGREED for link in whole.links)
    alone = Wire()
    alone.links[receiver].outgoing()
    alone.feed(receiver, bytes(whole.sent[1 - receiver]), size)
    assert [type(event) for event in alone.events[receiver]] == [
        type(event) for event in whole.events[receiver]
    ]
    assert alone.links[receiver].received == whole.links[receiver].received


@pytest.mark.parametrize("direction", [0, 1], ids=["there", "back"])
def test_every_changed_byte_of_the_whole_transcript_is_refused(direction: int) -> None:
    """Handshake, HELLO and one round, both ways: nothing that was changed is ever followed."""
    clean = Wire().run(1)
    due = [len(events) for events in clean.events]
    for index in range(len(clean.sent[direction])):
        wire = Wire(flip=(direction, index)).run(1)
        receiver = 1 - direction
        wire.links[receiver].finished()  # a broken length may wait for more
        assert wire.links[receiver].closed, index
        assert len(wire.events[receiver]) <= due[receiver]
        good = [event for event in wire.events[receiver] if not isinstance(event, Closed)]
        assert len(good) < due[receiver]
        assert wire.links[receiver].sent[MessageType.ERROR] <= 1


def resealed(stream: bytes, index: int) -> bytes:
    """The stream with one byte of its last frame's payload changed and both CRCs right again."""
    from draftwire.wire.frames import encode_frame

    begin = 0
    while True:
        length = int.from_bytes(stream[begin + 8 : begin + 12], "little")
        end = begin + 20 + length
        if end + FRAME_MAC_BYTES >= len(stream):
            break
        begin = end + (FRAME_MAC_BYTES if begin >= 2 * FRAME else 0)
    payload = bytearray(stream[begin + 16 : end - 4])
    payload[index % length] ^= 0x01
    head = stream[begin : begin + 16]
    frame = b"".join(encode_frame(head[4], MessageType(head[5]), bytes(payload)))  # type: ignore[arg-type]
    return stream[:begin] + frame + stream[end:]


@pytest.mark.parametrize("direction", [0, 1], ids=["there", "back"])
def test_a_change_that_mends_its_checksums_fails_the_mac(direction: int) -> None:
    """Every byte of the last payload: STEP there, COMPLETE back."""
    clean = Wire().run(1)
    stream = bytes(clean.sent[direction])
    receiver = 1 - direction
    for index in range(52):
        alone = Wire()
        alone.links[receiver].outgoing()
        alone.feed(receiver, resealed(stream, index))
        kind, code, _ = alone.failure(receiver)
        assert (kind.__name__, code) == ("ProtocolError", CODE.AUTHENTICATION_FAILED)


@pytest.mark.parametrize("receiver", [0, 1])
def test_a_recorded_connection_is_refused(receiver: int) -> None:
    """Everything the peer said, once more, to a side with a new nonce: not one message of it."""
    recorded = bytes(Wire().run().sent[1 - receiver])
    nonces = (b"V" * 32, b"d" * 32) if receiver == 0 else (b"v" * 32, b"D" * 32)
    again = Wire(nonces=nonces)
    again.feed(receiver, recorded)
    assert again.failure(receiver)[1:] == (CODE.AUTHENTICATION_FAILED, "proof")
    assert len(again.events[receiver]) == 1
    assert again.links[receiver].agreed is None


@pytest.mark.parametrize("receiver", [0, 1])
def test_a_side_is_not_fooled_by_its_own_words(receiver: int) -> None:
    wire = Wire()
    link = wire.links[receiver]
    if receiver == 1:
        wire.feed(1, b"".join(wire.links[0].outgoing()))
    mine = b"".join(link.outgoing())
    wire.feed(receiver, mine)
    assert wire.failure(receiver)[1] is CODE.AUTHENTICATION_FAILED
    assert wire.failure(receiver)[2] == ("nonce" if receiver == 0 else "proof")


@pytest.mark.parametrize(
    ("held", "drafters", "verifiers"),
    [
        ((KEY, b"x" * 32), "proof", "proof"),
        ((KEY, b""), None, None),
        ((b"", KEY), "nonce", "nonce"),
    ],
    ids=["another key", "the verifier's alone", "the drafter's alone"],
)
def test_a_wrong_or_missing_key_is_said_once_and_known_on_both_ends(
    held: tuple[bytes, bytes], drafters: str | None, verifiers: str | None
) -> None:
    wire = Wire(keys=held).run()
    kind, code, name = wire.failure(1)
    assert (kind.__name__, code, name) == ("ProtocolError", CODE.AUTHENTICATION_FAILED, drafters)
    kind, code, name = wire.failure(0)
    assert (kind, code, name or None) == (RemoteError, CODE.AUTHENTICATION_FAILED, verifiers)
    assert len(wire.sent[1]) <= FRAME + 72  # its CHALLENGE at most, and one ERROR
    assert all(link.agreed is None for link in wire.links)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95\x1c\0\0\0", bytes(range(256)), b"\x16\x03\x01\x02"],
    ids=["http", "pickle", "bytes", "tls"],
)
def test_x40_a_stranger_gets_one_constant_error_and_nothing_else(data: bytes) -> None:
    wire = Wire()
    wire.feed(1, data * 3)
    assert wire.failure(1)[1] is CODE.BAD_MAGIC
    assert len(b"".join(wire.links[1].outgoing())) == 72


def test_before_the_proof_a_peer_costs_one_small_buffer() -> None:
    link = Link(hello(Role.DRAFTER), 0.0, KEY, b"d" * 32)
    assert len(link.buffer()) < 1200
    assert len(Link(hello(Role.DRAFTER), 0.0).buffer()) < 1200


def test_a_right_frame_without_its_mac_is_refused() -> None:
    """Each is right to the last bit, and anybody on the way could have made it."""
    wire = Wire().run(rounds=0)
    agreed = wire.links[0].agreed
    assert agreed is not None
    session, table = VerifierSession(1, 0, PROMPT, PROPOSAL_KEY, agreed), SessionTable(agreed)
    task = table.receive(session.ask(SPARSE, 0.0, 1.0)).task
    assert task is not None
    answer = b"".join(table.reply(task, HashDrafter().draft(task)))
    plain = Wire(keys=(b"", b"")).run(rounds=0)
    reply, complete = plain.links[0].feed(answer, 0.0)  # without a key it is taken
    assert isinstance(reply, Received)
    assert isinstance(complete, Received)
    assert session.take(reply, 0.0) is None
    proposal = session.take(complete, 0.0)
    assert isinstance(proposal, Proposal)
    session.commit(0, Outcome.CORRECTION, (proposal.tokens[0] + 1) % 7)
    following = session.ask(SPARSE, 0.0, 1.0)
    step = frame_bytes(encode_frame(agreed.version, MessageType.STEP, *encode(following)))
    wire.feed(0, answer + bytes(FRAME_MAC_BYTES))
    wire.feed(1, step + bytes(FRAME_MAC_BYTES))
    for side in (0, 1):
        assert wire.failure(side)[1] is CODE.AUTHENTICATION_FAILED
    (came,) = plain.links[1].feed(step, 0.0)
    assert isinstance(came, Received)
    assert came.message == following
