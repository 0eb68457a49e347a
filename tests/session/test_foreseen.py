"""A STEP that was foreseen is followed as it is field by field, whatever is wrong with it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from draftwire.errors import ProtocolErrorCode
from draftwire.session.drafter_session import DrafterSession
from draftwire.session.foreseen import Foreseen
from draftwire.session.link import Closed, Link
from draftwire.session.proposal import DraftTask, Matched, Received
from draftwire.session.session_table import SessionTable
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.checksum import crc32c
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.following import FRAME_BYTES
from draftwire.wire.frames import FrameReader
from draftwire.wire.messages import (
    Cancel,
    Commit,
    CommitRider,
    Message,
    ProposalPolicy,
    Reset,
    Step,
)
from draftwire.wire.registry import MessageType, Outcome, Role
from testing.harness.joined import (
    DENSE,
    KEY,
    PROMPT,
    SPARSE,
    VOCABULARY,
    HashDrafter,
    held_by,
    hello,
)

STEP = PAYLOAD_TABLES[MessageType.STEP]
HEADER = 16
Result = tuple[object, ...]
ENDINGS = [
    *((Outcome.CORRECTION, accepted) for accepted in range(SPARSE.depth)),
    (Outcome.BONUS, SPARSE.depth),
]


class Pair:
    """A drafter's link and sessions, and a verifier whose STEPs they follow."""

    def __init__(self, *, foresees: bool, policy: ProposalPolicy = SPARSE) -> None:
        self.link = Link(hello(Role.DRAFTER), 0.0)
        self.verifier = Link(hello(Role.VERIFIER), 0.0)
        self.verifier.start()
        for sender, receiver in ((self.verifier, self.link), (self.link, self.verifier)):
            for part in sender.outgoing():
                list(receiver.feed(part, 0.0))
        assert self.link.agreed is not None
        assert self.verifier.agreed is not None
        self.roster = SessionTable(self.link.agreed)
        self.drafter = HashDrafter()
        self.policy = policy
        self.foresees = foresees
        self.followed = 0
        self.sessions = [
            VerifierSession(number, number - 1, PROMPT, KEY, self.verifier.agreed)
            for number in (1, 2)
        ]

    def step(self, session: int = 0, policy: ProposalPolicy | None = None) -> bytes:
        """The bytes of a session's next STEP."""
        return self.sent(self.sessions[session].ask(policy or self.policy, 0.0, 1.0))

    def sent(self, message: Message) -> bytes:
        self.verifier.send(message)
        return b"".join(self.verifier.outgoing())

    def round(self, session: int = 0) -> None:
        """A good round up to its proposal."""
        (todo,) = self.follow(self.step(session))
        assert isinstance(todo, DraftTask)
        self.answer(todo, session)

    def answer(self, task: DraftTask, session: int = 0) -> None:
        """Answer a task; the verifier takes the answer, and the next STEP may be foreseen."""
        drafted = self.drafter.draft(task, self.roster[task.session].tokens)
        for part in self.roster.reply(task, drafted):
            for event in self.verifier.feed(part, 0.5):
                assert isinstance(event, Received | Matched)
                self.sessions[session].take(event, 0.5)
        if self.foresees:
            foreseen = self.roster.foresee(task.session)
            assert foreseen is not None
            self.link.foresee(foreseen)

    def answer_to(self, step: Step) -> None:
        """A round by hand: the drafter alone, whose next STEP may be foreseen."""
        (task,) = self.follow(self.sent(step))
        assert isinstance(task, DraftTask)
        self.roster.reply(task, self.drafter.draft(task, self.roster[task.session].tokens))
        foreseen = self.roster.foresee(task.session)
        assert foreseen is not None
        if self.foresees:
            self.link.foresee(foreseen)

    def commit(self, outcome: Outcome, accepted: int, session: int = 0, other: int = 1) -> None:
        """End the round, with a token that is not the draft."""
        asking = self.sessions[session]
        drafts = self.roster[session + 1]._drafts
        token = (drafts[accepted] + other) % VOCABULARY if accepted < len(drafts) else other
        asking.commit(accepted, outcome, None if outcome is Outcome.ENDED else token)

    def follow(self, *pieces: bytes) -> Iterator[object]:
        """What the drafter makes of the pieces, and whether the link has ended."""
        for piece in pieces:
            for event in self.link.feed(piece, 0.75):
                if isinstance(event, Closed):
                    assert event.error is not None
                    yield event.error.code
                    return
                if isinstance(event, Foreseen):
                    self.followed += 1
                    self.roster.followed(event, 0.75)
                    yield event.task
                    continue
                assert isinstance(event, Received), event
                todo = self.roster.receive(event.message, 0.75)
                if todo.task is not None:
                    yield todo.task
                else:
                    yield (*map(bytes, todo.parts), todo.ended, todo.refused, todo.again)

    def result(self, *pieces: bytes) -> Result:
        """All that can be told apart from outside, and what later STEPs are judged by."""
        results = tuple(self.follow(*pieces))
        held = []
        for number in (1, 2):
            if number in self.roster:
                held.append(held_by(self.roster[number]))
        roster = (dict(self.roster._asked), dict(self.roster._slots), dict(self.roster._ended))
        link = (self.link.state, dict(self.link.received), self.link.frames, self.link.heard_at)
        return (results, *held, roster, link, self.link.agreed)


def both(
    outcome: Outcome = Outcome.CORRECTION,
    accepted: int = 1,
    damage: Callable[[bytes], Sequence[bytes]] = lambda step: (step,),
    policy: ProposalPolicy = SPARSE,
) -> tuple[Result, bool]:
    """The result of a second STEP, the same in both ways; and whether it was foreseen."""
    found, followed = [], False
    for foresees in (True, False):
        pair = Pair(foresees=foresees, policy=policy)
        pair.round()
        pair.commit(outcome, accepted)
        found.append(pair.result(*damage(pair.step())))
        followed |= pair.followed > 0
    assert found[0] == found[1]
    return found[0], followed


@pytest.mark.parametrize("policy", [SPARSE, DENSE])
@pytest.mark.parametrize(("outcome", "accepted"), ENDINGS)
def test_every_end_of_a_proposal_is_foreseen(
    outcome: Outcome, accepted: int, policy: ProposalPolicy
) -> None:
    result, followed = both(outcome, accepted, policy=policy)
    ((task,), *_) = result
    assert followed
    assert isinstance(task, DraftTask)


def test_what_ends_a_proposal_otherwise_is_not_foreseen() -> None:
    result, followed = both(Outcome.ENDED, 2)
    assert not followed
    ((answer,), *_) = result
    assert not isinstance(answer, int)


def sealed(step: bytearray) -> bytes:
    """The frame with checksums that hold, whatever is in it."""
    struct.pack_into("<I", step, 12, crc32c(bytes(step[:12])))
    struct.pack_into("<I", step, len(step) - 4, crc32c(bytes(step[HEADER:-4])))
    return bytes(step)


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize(("outcome", "accepted"), [ENDINGS[1], ENDINGS[-1]])
def test_every_flipped_bit_ends_as_it_does_field_by_field(
    outcome: Outcome, accepted: int, seal: bool
) -> None:
    foreseen = 0
    for bit in range(8 * FRAME_BYTES):

        def flip(step: bytes, bit: int = bit) -> Sequence[bytes]:
            damaged = bytearray(step)
            damaged[bit // 8] ^= 1 << bit % 8
            return (sealed(damaged) if seal else bytes(damaged),)

        foreseen += both(outcome, accepted, flip)[1]
    # Under checksums that hold, a bit may be one of the checksums, which are then as they were.
    assert foreseen == (64 if seal else 0)


FIELDS = ("committed_outcome", "anchor", "first_position", "committed_accepted", "base")
FORMATS = {"committed_outcome": "<B", "committed_accepted": "<H"}


def test_every_number_that_varies_is_judged_as_it_is_field_by_field() -> None:
    """Checksums and digest hold all along: outcome, counts, positions and token do not."""
    seen = set()
    offset = {name: HEADER + STEP.offset(name) for name in FIELDS}
    for outcome, accepted, delta, token in product(
        (0, *Outcome), range(SPARSE.depth + 2), (-1, 0, 1), (-1, 0, 1, 5, VOCABULARY)
    ):

        def craft(
            step: bytes,
            outcome: int = outcome,
            accepted: int = accepted,
            delta: int = delta,
            token: int = token,
        ) -> Sequence[bytes]:
            damaged = bytearray(step)
            damaged[offset["committed_outcome"]] = outcome
            struct.pack_into("<H", damaged, offset["committed_accepted"], accepted)
            begin = struct.unpack_from("<I", damaged, offset["base"])[0] + accepted - 1 + delta
            for name, value in (("anchor", begin), ("first_position", begin + 1), ("base", begin)):
                struct.pack_into("<I", damaged, offset[name], value)
            struct.pack_into("<i", damaged, FRAME_BYTES - 8, token)
            return (sealed(with_digest(damaged, accepted, token)),)

        result, followed = both(Outcome.CORRECTION, 1, craft)
        seen.add((followed, type(result[0][0])))  # type: ignore[index]
    assert (True, DraftTask) in seen
    assert (False, tuple) in seen
    assert (True, tuple) not in seen


def with_digest(step: bytearray, accepted: int, token: int) -> bytearray:
    """The STEP with the digest of what it commits, where that can be."""
    pair = Pair(foresees=False)
    pair.round()
    held = pair.roster[1]
    try:
        digest = held._prefix.digest_with((*held._drafts[:accepted], token))
    except OverflowError:
        return step
    at = HEADER + STEP.offset("prefix_digest")
    step[at : at + len(digest)] = digest
    return step


def test_every_split_is_the_same() -> None:
    for at in range(FRAME_BYTES + 1):
        both(damage=lambda step, at=at: (step[:at], step[at:]))  # type: ignore[misc]


def test_bytes_that_have_not_come_are_not_read() -> None:
    """They lie in the buffer already, as those of an older message may."""
    for at in range(FRAME_BYTES):
        pair = Pair(foresees=True)
        pair.round()
        pair.commit(Outcome.CORRECTION, 1)
        step = pair.step()
        pair.link.buffer()[:FRAME_BYTES] = step
        assert pair.link.filled(at, 0.75) is None
        assert isinstance(pair.link.filled(FRAME_BYTES - at, 0.75), Foreseen)


class AtTheEnd(FrameReader):
    """A reader whose buffer ends with the first bytes of a frame."""

    def received(self, count: int) -> tuple[memoryview, int, int]:
        size = self.capacity
        return self._store, size - 8, size


def test_the_end_of_the_buffer_is_not_read_over() -> None:
    pair = Pair(foresees=True)
    pair.round()
    reader = AtTheEnd(pair.link._reader.bounds)
    assert pair.link._recognition.take(reader, 0) is None


def test_a_retry_is_answered_as_it_is_field_by_field() -> None:
    found = []
    for foresees in (True, False):
        pair = Pair(foresees=foresees)
        pair.round()
        pair.commit(Outcome.CORRECTION, 1)
        step = pair.step()
        first = pair.result(step, step)
        (task, _) = first[0]  # type: ignore[misc]
        assert isinstance(task, DraftTask)
        pair.answer(task)
        found.append((first, pair.result(step), pair.followed))
    assert [each[:2] for each in found] == [found[0][:2]] * 2
    assert [each[2] for each in found] == [1, 0]


def messages(pair: Pair, kind: str) -> bytes:
    """Something else that the verifier may say between a proposal and the next STEP."""
    held = pair.roster[1]
    if kind == "commit":
        drafts = (*held._drafts[:1], (held._drafts[1] + 1) % VOCABULARY)
        digest = held._prefix.digest_with(drafts)
        ended = (Outcome.CORRECTION, 1, drafts[-1], len(held) + 2, digest)
        return pair.sent(Commit(1, 1, held.round, *ended))
    if kind == "reset":
        return pair.sent(Reset(1, 1, 2))
    if kind == "cancel":
        return pair.sent(Cancel(1, 1))
    if kind == "stale cancel":
        return pair.sent(Cancel(1, 7))
    if kind == "other session":
        return pair.step(1)
    assert kind == "slot"  # another session claims the slot, and waits in it
    pair.sessions[1].slot = 0
    return pair.step(1)


@pytest.mark.parametrize(
    "kind", ["commit", "reset", "cancel", "stale cancel", "other session", "slot"]
)
def test_what_comes_in_between_is_heard(kind: str) -> None:
    found, followed = [], 0
    for foresees in (True, False):
        pair = Pair(foresees=foresees)
        pair.round()
        between = messages(pair, kind)
        pair.commit(Outcome.CORRECTION, 1)
        step = pair.step()
        found.append((pair.result(between), pair.result(step), pair.result(step)))
        followed += pair.followed
    assert found[0] == found[1]
    assert followed == (kind in ("stale cancel", "other session"))


def test_two_sessions_take_turns() -> None:
    found = []
    for foresees in (True, False):
        pair = Pair(foresees=foresees)
        results = []
        pair.round(0)
        pair.round(1)
        for index in range(6):
            for session in (0, 1):
                pair.commit(
                    *ENDINGS[(index + session) % len(ENDINGS)], session, other=index % 3 + 1
                )
                step = pair.step(session)
                results.append(pair.result(step))
                (task,) = results[-1][0]  # type: ignore[misc]
                assert isinstance(task, DraftTask)
                pair.answer(task, session)
        found.append(results)
        assert pair.followed == (12 if foresees else 0)
    assert found[0] == found[1]


def test_a_full_context_is_declined_as_it_is_field_by_field() -> None:
    found, followed = [], []
    for foresees, room in product((True, False), (2, 3)):
        pair = Pair(foresees=foresees)
        pair.roster = SessionTable(pair.roster.agreed, max_context=len(pair.sessions[0]) + 3 + room)
        pair.round()
        pair.commit(Outcome.CORRECTION, 2)
        found.append((room, pair.result(pair.step())))
        followed.append(pair.followed)
    assert found[:2] == found[2:]
    assert followed == [0, 1, 0, 0]


def with_fields(step: bytes, digest: bytes | None = None, **numbers: int) -> bytes:
    """The frame with other numbers and another digest, under checksums that hold."""
    changed = bytearray(step)
    for name, value in numbers.items():
        struct.pack_into("<I", changed, HEADER + STEP.offset(name), value)
    if digest is not None:
        at = HEADER + STEP.offset("prefix_digest")
        changed[at : at + len(digest)] = digest
    return sealed(changed)


@pytest.mark.parametrize("apart", [-1, 1])
def test_an_anchor_that_is_not_the_last_token_ends_as_it_does_field_by_field(apart: int) -> None:
    def craft(step: bytes) -> Sequence[bytes]:
        (anchor,) = struct.unpack_from("<I", step, HEADER + STEP.offset("anchor"))
        return (with_fields(step, anchor=anchor + apart, first_position=anchor + 1 + apart),)

    result, followed = both(Outcome.CORRECTION, 1, craft)
    assert not followed
    assert result[0] == (ProtocolErrorCode.BAD_FIELD,)


def test_what_a_commit_has_told_is_not_followed_once_more() -> None:
    """A digest of the prefix with all of that behind it again fits no other number of the STEP."""
    found = []
    for foresees in (True, False):
        pair = Pair(foresees=foresees)
        pair.round()
        held = pair.roster[1]
        grown = (*held._drafts[:1], (held._drafts[1] + 1) % VOCABULARY)
        list(pair.follow(messages(pair, "commit")))
        pair.commit(Outcome.CORRECTION, 1)
        step = with_fields(pair.step(), held._prefix.digest_with(grown))
        found.append((pair.result(step), pair.followed))
    assert found[0] == found[1]
    ((answer,), *_), _ = found[0]
    assert answer[-2] is ProtocolErrorCode.WRONG_DIGEST  # type: ignore[index]


def test_what_was_foreseen_of_an_older_proposal_is_not_followed() -> None:
    """Its round once more, with what would follow the latest: only a retry may come under it."""
    found = []
    for foresees in (True, False):
        pair = Pair(foresees=foresees)
        pair.round()
        pair.foresees = False
        pair.commit(Outcome.ENDED, 2)  # which nothing foresees
        pair.round()
        pair.commit(Outcome.CORRECTION, 1)
        step = with_fields(pair.step(), round=2, committed_round=1)
        found.append((pair.result(step), pair.followed))
    assert found[0] == found[1]
    ((answer,), *_), _ = found[0]
    assert answer[-2] is ProtocolErrorCode.DUPLICATE_ROUND  # type: ignore[index]


CHANGES: dict[str, Any] = {
    "generation": 2,
    "slot": 1,
    "proposal_key": 5,
    "context_version": 3,
    "policy": replace(SPARSE, temperature=0.5),
}


def following(latest: Step, held: DrafterSession) -> Step:
    """The STEP after the proposal to another one, of which one draft is accepted."""
    drafts = held._drafts
    grown = (drafts[0], (drafts[1] + 1) % VOCABULARY)
    return replace(
        latest,
        round=latest.round + 1,
        anchor=latest.anchor + 2,
        commit=CommitRider(latest.round, 1, Outcome.CORRECTION),
        prefix_digest=held._prefix.digest_with(grown),
        base=latest.anchor + 2,
        tokens=grown[1:],
    )


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_asked_before_the_latest_is_not_foreseen(name: str) -> None:
    """The latest STEP has another slot, or key, or what it is: the next one has the first one's."""
    found = []
    for foresees in (True, False):
        pair = Pair(foresees=foresees)
        first = pair.sessions[0].ask(SPARSE, 0.0, 1.0)
        pair.answer_to(first)
        opens = name == "generation"
        latest = replace(
            first if opens else following(first, pair.roster[1]), **{name: CHANGES[name]}
        )
        pair.answer_to(latest)
        step = replace(following(latest, pair.roster[1]), **{name: getattr(first, name)})
        found.append((pair.result(pair.sent(step)), pair.followed))
    assert found[0] == found[1]
    assert not found[0][1]
