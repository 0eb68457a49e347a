"""The STEP after a proposal is followed, or refused and nothing has changed, whatever is wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from draftwire.errors import ProtocolErrorCode
from draftwire.session.drafter_session import DrafterSession
from draftwire.session.link import Closed, Link
from draftwire.session.proposal import DraftTask, Received
from draftwire.session.session_table import SessionTable
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.checksum import crc32c
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.messages import (
    Cancel,
    Commit,
    CommitRider,
    Message,
    ProposalPolicy,
    Reset,
    Step,
)
from draftwire.wire.registry import (
    HEADER_BYTES,
    TRAILER_BYTES,
    MessageType,
    Outcome,
    Role,
)
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
HEADER = HEADER_BYTES
FRAME_BYTES = HEADER + STEP.bytes + 4 + TRAILER_BYTES  # with one token
Result = tuple[object, ...]
ENDINGS = [
    *((Outcome.CORRECTION, accepted) for accepted in range(SPARSE.depth)),
    (Outcome.BONUS, SPARSE.depth),
]


class Pair:
    """A drafter's link and sessions, and a verifier whose STEPs they follow."""

    def __init__(self, policy: ProposalPolicy = SPARSE) -> None:
        self.link = Link(hello(Role.DRAFTER), 0.0)
        self.verifier = Link(hello(Role.VERIFIER), 0.0)
        self.verifier.start()
        for sender, receiver in ((self.verifier, self.link), (self.link, self.verifier)):
            for part in sender.outgoing():
                list(receiver.feed(part, 0.0))
        assert self.link.agreed is not None
        assert self.verifier.agreed is not None
        self.table = SessionTable(self.link.agreed)
        self.drafter = HashDrafter()
        self.policy = policy
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
        (actions,) = self.follow(self.step(session))
        assert isinstance(actions, DraftTask)
        self.answer(actions, session)

    def answer(self, task: DraftTask, session: int = 0) -> None:
        """Answer a task; the verifier takes the answer."""
        drafted = self.drafter.draft(task, self.table[task.session].tokens)
        for part in self.table.reply(task, drafted):
            for event in self.verifier.feed(part, 0.5):
                assert isinstance(event, Received)
                self.sessions[session].take(event, 0.5)

    def answer_to(self, step: Step) -> None:
        """A round by hand, of the drafter alone."""
        (task,) = self.follow(self.sent(step))
        assert isinstance(task, DraftTask)
        self.table.reply(task, self.drafter.draft(task, self.table[task.session].tokens))

    def commit(self, outcome: Outcome, accepted: int, session: int = 0, other: int = 1) -> None:
        """End the round, with a token that is not the draft."""
        asking = self.sessions[session]
        drafts = self.table[session + 1]._drafts
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
                assert isinstance(event, Received), event
                actions = self.table.receive(event.message, 0.75)
                if actions.task is not None:
                    yield actions.task
                else:
                    yield (
                        *map(bytes, actions.parts),
                        actions.ended,
                        actions.refused,
                        actions.again,
                    )

    def result(self, *pieces: bytes) -> Result:
        """All that can be told apart from outside, and what later STEPs are judged by."""
        results = tuple(self.follow(*pieces))
        held = []
        for number in (1, 2):
            if number in self.table:
                held.append(held_by(self.table[number]))
        table = (dict(self.table._asked), dict(self.table._slots), dict(self.table._ended))
        link = (self.link.state, dict(self.link.received), self.link.frames, self.link.heard_at)
        return (results, *held, table, link, self.link.agreed)


def second(
    outcome: Outcome = Outcome.CORRECTION,
    accepted: int = 1,
    damage: Callable[[bytes], Sequence[bytes]] = lambda step: (step,),
    policy: ProposalPolicy = SPARSE,
) -> Result:
    """The result of a second STEP; one that is refused has changed nothing of its session."""
    pair = Pair(policy)
    pair.round()
    before = held_by(pair.table[1])
    pair.commit(outcome, accepted)
    result = pair.result(*damage(pair.step()))
    results, after, *_ = result
    last = results[-1] if results else None  # type: ignore[index]
    if isinstance(last, ProtocolErrorCode) or (isinstance(last, tuple) and last[-2] is not None):
        assert after == before
    return result


@pytest.mark.parametrize("policy", [SPARSE, DENSE])
@pytest.mark.parametrize(("outcome", "accepted"), ENDINGS)
def test_every_end_of_a_proposal_is_followed(
    outcome: Outcome, accepted: int, policy: ProposalPolicy
) -> None:
    ((task,), *_) = second(outcome, accepted, policy=policy)
    assert isinstance(task, DraftTask)
    assert task.cached_tokens == len(PROMPT) + min(accepted, policy.depth - 1)


def test_an_end_without_a_token_is_followed() -> None:
    ((task,), *_) = second(Outcome.ENDED, 2)
    assert isinstance(task, DraftTask)


def sealed(step: bytearray) -> bytes:
    """The frame with checksums that hold, whatever is in it."""
    struct.pack_into("<I", step, 12, crc32c(bytes(step[:12])))
    struct.pack_into("<I", step, len(step) - 4, crc32c(bytes(step[HEADER:-4])))
    return bytes(step)


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize(("outcome", "accepted"), [ENDINGS[1], ENDINGS[-1]])
def test_every_flipped_bit_is_refused_or_names_the_same_prefix(
    outcome: Outcome, accepted: int, seal: bool
) -> None:
    ((right,), *_) = second(outcome, accepted)
    assert isinstance(right, DraftTask)
    followed = 0
    for bit in range(8 * FRAME_BYTES):

        def flip(step: bytes, bit: int = bit) -> Sequence[bytes]:
            damaged = bytearray(step)
            damaged[bit // 8] ^= 1 << bit % 8
            return (sealed(damaged) if seal else bytes(damaged),)

        (results, *_) = second(outcome, accepted, flip)
        for task in results:  # type: ignore[attr-defined]
            if isinstance(task, DraftTask):
                followed += 1
                # The key, the slot, the context version and some policies may be others.
                assert (task.session, task.generation) == (1, 1)
                assert task.cached_tokens == right.cached_tokens
                assert task.new_tokens == right.new_tokens
                assert task.first_position == right.first_position
    # Under checksums that hold, a bit may be one of the checksums, which are then as they were.
    assert followed >= 64 if seal else not followed


FIELDS = ("committed_outcome", "anchor", "first_position", "committed_accepted", "base")
FORMATS = {"committed_outcome": "<B", "committed_accepted": "<H"}


def test_every_number_that_varies_is_judged() -> None:
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

        ((answer,), *_) = second(Outcome.CORRECTION, 1, craft)
        if isinstance(answer, DraftTask):
            assert delta == (-1 if outcome == Outcome.ENDED else 0)
            assert {
                Outcome.CORRECTION: accepted < SPARSE.depth,
                Outcome.BONUS: accepted == SPARSE.depth,
                Outcome.TARGET_ONLY: accepted == 0,
                Outcome.ENDED: 0 < accepted <= SPARSE.depth,
            }[Outcome(outcome)]
            assert 0 <= token < VOCABULARY
        seen.add(type(answer))
    assert seen == {DraftTask, tuple, ProtocolErrorCode}


def with_digest(step: bytearray, accepted: int, token: int) -> bytearray:
    """The STEP with the digest of what it commits, where that can be."""
    pair = Pair()
    pair.round()
    held = pair.table[1]
    try:
        digest = held._prefix.digest_with((*held._drafts[:accepted], token))
    except OverflowError:
        return step
    at = HEADER + STEP.offset("prefix_digest")
    step[at : at + len(digest)] = digest
    return step


def test_every_split_is_the_same() -> None:
    found = second()
    for at in range(FRAME_BYTES + 1):
        assert second(damage=lambda step, at=at: (step[:at], step[at:])) == found  # type: ignore[misc]


def test_bytes_that_have_not_come_are_not_read() -> None:
    """They lie in the buffer already, as those of an older message may."""
    for at in range(FRAME_BYTES):
        pair = Pair()
        pair.round()
        pair.commit(Outcome.CORRECTION, 1)
        step = pair.step()
        pair.link.buffer()[:FRAME_BYTES] = step
        assert pair.link.filled(at, 0.75) is None
        event = pair.link.filled(FRAME_BYTES - at, 0.75)
        assert isinstance(event, Received)
        assert isinstance(event.message, Step)


def test_a_retry_is_answered_by_the_same_bytes() -> None:
    pair = Pair()
    pair.round()
    pair.commit(Outcome.CORRECTION, 1)
    step = pair.step()
    (task, nothing), *_ = pair.result(step, step)
    assert isinstance(task, DraftTask)
    assert nothing == ((), None, True)  # it waits already
    pair.answer(task)
    ((*frames, _, _, again), *_), *_ = pair.result(step)
    assert again
    assert b"".join(frames) == b"".join(map(bytes, pair.table[1]._kept))


def messages(pair: Pair, kind: str) -> bytes:
    """Something else that the verifier may say between a proposal and the next STEP."""
    held = pair.table[1]
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
    ("kind", "code"),
    [
        ("commit", None),  # told twice, and right
        ("reset", "late"),
        ("cancel", "late"),
        ("stale cancel", None),
        ("other session", None),
        ("slot", ProtocolErrorCode.NO_SLOT),
    ],
)
def test_what_comes_in_between_is_heard(kind: str, code: object) -> None:
    pair = Pair()
    pair.round()
    between = messages(pair, kind)
    pair.commit(Outcome.CORRECTION, 1)
    step = pair.step()
    list(pair.follow(between))
    (answer,) = pair.follow(step)
    if code is None:
        assert isinstance(answer, DraftTask)
    elif code == "late":  # what it belongs to is over, and nothing to be said
        assert answer == ((), None, False)
    else:
        assert isinstance(answer, tuple)
        assert answer[-2] is code


def test_two_sessions_take_turns() -> None:
    pair = Pair()
    pair.round(0)
    pair.round(1)
    for index in range(6):
        for session in (0, 1):
            ending = ENDINGS[(index + session) % len(ENDINGS)]
            pair.commit(*ending, session, other=index % 3 + 1)
            (task,) = pair.follow(pair.step(session))
            assert isinstance(task, DraftTask)
            assert pair.table[session + 1].tokens == pair.sessions[session].tokens
            pair.answer(task, session)


@pytest.mark.parametrize("room", [2, 3])
def test_a_full_context_is_declined(room: int) -> None:
    pair = Pair()
    pair.table = SessionTable(pair.table.agreed, max_context=len(pair.sessions[0]) + 3 + room)
    pair.round()
    pair.commit(Outcome.CORRECTION, 2)
    (answer,) = pair.follow(pair.step())
    assert isinstance(answer, DraftTask) is (room == 3)


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
def test_an_anchor_that_is_not_the_last_token_is_refused(apart: int) -> None:
    def craft(step: bytes) -> Sequence[bytes]:
        (anchor,) = struct.unpack_from("<I", step, HEADER + STEP.offset("anchor"))
        return (with_fields(step, anchor=anchor + apart, first_position=anchor + 1 + apart),)

    result = second(Outcome.CORRECTION, 1, craft)
    assert result[0] == (ProtocolErrorCode.BAD_FIELD,)


def test_what_a_commit_has_told_is_not_followed_once_more() -> None:
    """A digest of the prefix with all of that behind it again fits no other number of the STEP."""
    pair = Pair()
    pair.round()
    held = pair.table[1]
    grown = (*held._drafts[:1], (held._drafts[1] + 1) % VOCABULARY)
    list(pair.follow(messages(pair, "commit")))
    pair.commit(Outcome.CORRECTION, 1)
    step = with_fields(pair.step(), held._prefix.digest_with(grown))
    (answer,) = pair.follow(step)
    assert isinstance(answer, tuple)
    assert answer[-2] is ProtocolErrorCode.WRONG_DIGEST


def test_what_follows_an_older_proposal_is_not_followed() -> None:
    """Its round once more, with what would follow the latest: only a retry may come under it."""
    pair = Pair()
    pair.round()
    pair.commit(Outcome.ENDED, 2)
    pair.round()
    pair.commit(Outcome.CORRECTION, 1)
    (answer,) = pair.follow(with_fields(pair.step(), round=2, committed_round=1))
    assert isinstance(answer, tuple)
    assert answer[-2] is ProtocolErrorCode.DUPLICATE_ROUND


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
def test_a_step_is_followed_by_what_it_says_and_not_by_what_was_asked_before(name: str) -> None:
    """The latest STEP has another slot, or key, or what it is: the next one has the first one's."""
    pair = Pair()
    first = pair.sessions[0].ask(SPARSE, 0.0, 1.0)
    pair.answer_to(first)
    opens = name == "generation"
    latest = replace(first if opens else following(first, pair.table[1]), **{name: CHANGES[name]})
    pair.answer_to(latest)
    step = replace(following(latest, pair.table[1]), **{name: getattr(first, name)})
    (answer,) = pair.follow(pair.sent(step))
    if opens:  # a STEP of the generation that is over is stale, and nothing is said
        assert answer == ((), None, False)
    else:
        assert isinstance(answer, DraftTask)
        assert getattr(answer, name) == getattr(first, name)
