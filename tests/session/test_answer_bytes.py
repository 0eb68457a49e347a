"""The bytes of an answer are one proposal or none, whatever is wrong with them (P13, P14)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from draftwire.exact.counts import TOTAL
from draftwire.session.link import Closed, Link
from draftwire.session.proposal import Dropped, Proposal, Received
from draftwire.session.reasons import DropReason
from draftwire.session.session_table import SessionTable
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire.checksum import crc32c
from draftwire.wire.registry import PAD_ID, Outcome, Role
from testing.harness.joined import KEY, PROMPT, SPARSE, SUPPORT, HashDrafter, hello

REPLY_HEAD = 16 + 64
ROW = 16 + 8 * SUPPORT
REPLY = REPLY_HEAD + SPARSE.depth * ROW + 4
Result = tuple[object, ...]


class Pair:
    """A verifier's link and session, and the bytes that answer its first STEP."""

    def __init__(self) -> None:
        self.link = Link(hello(Role.VERIFIER), 0.0)
        drafter = Link(hello(Role.DRAFTER), 0.0)
        self.link.start()
        for sender, receiver in ((self.link, drafter), (drafter, self.link)):
            for part in sender.outgoing():
                list(receiver.feed(part, 0.0))
        assert self.link.agreed is not None
        self.session = VerifierSession(1, 0, PROMPT, KEY, self.link.agreed)
        self.table = SessionTable(self.link.agreed)
        self.drafter = HashDrafter()

    def ask(self) -> bytes:
        step = self.session.ask(SPARSE, 0.0, 1.0)
        task = self.table.receive(step).task
        assert task is not None
        return b"".join(self.table.reply(task, self.drafter.draft(task)))

    def feed(self, *pieces: bytes) -> Iterator[object]:
        """What the session makes of the pieces, and whether the link has ended."""
        for piece in pieces:
            for event in self.link.feed(piece, 0.5):
                if isinstance(event, Closed):
                    assert event.error is not None
                    yield event.error.code
                    if self.session.due(1.0):
                        yield self.session.give_up(DropReason.CORRUPT)
                    return
                assert isinstance(event, Received)
                result = self.session.take(event, 0.5)
                if result is not None:
                    yield result

    def result(self, *pieces: bytes) -> Result:
        """All that can be told apart from outside."""
        results: list[object] = []
        for result in self.feed(*pieces):
            if isinstance(result, Proposal):
                rows = tuple(row.exact() for row in result.rows)
                results.append((result.tokens, rows, result.round, result.first_position))
            else:
                results.append(result)
        session = self.session
        booked = (session.state, dict(session.drops), session.audited, session.round_trip)
        return (*results, booked, dict(self.link.received), self.link.heard_at)


def damaged_by(damage: Callable[[bytes], bytes]) -> Result:
    """The result of a damaged answer."""
    pair = Pair()
    return pair.result(damage(pair.ask()))


def test_a_good_answer_is_two_messages_and_one_proposal() -> None:
    pair = Pair()
    events = list(pair.link.feed(pair.ask(), 0.5))
    assert [type(event) for event in events] == [Received, Received]
    ((tokens, *_), *_) = damaged_by(lambda answer: answer)
    assert len(tokens) == SPARSE.depth


def test_no_flipped_bit_leaves_a_proposal() -> None:
    for bit in range(8 * len(Pair().ask())):

        def flip(answer: bytes, bit: int = bit) -> bytes:
            damaged = bytearray(answer)
            damaged[bit // 8] ^= 1 << bit % 8
            return bytes(damaged)

        assert isinstance(damaged_by(flip)[0], Dropped | int)


def test_every_split_of_the_stream_is_the_same() -> None:
    pair = Pair()
    answer = pair.ask()
    whole = pair.result(answer)
    for at in range(len(answer) + 1):
        pair = Pair()
        answer = pair.ask()
        begun = pair.result(answer[:at])
        assert (begun == whole) is (at == len(answer))
        ended = pair.result(answer[at:])
        assert ended == (whole if at < len(answer) else whole[1:])
    pair = Pair()
    answer = pair.ask()
    ((tokens, *_), *_) = pair.result(*(answer[at : at + 1] for at in range(len(answer))))
    assert len(tokens) == SPARSE.depth


def sealed(answer: bytearray) -> bytes:
    """The answer with checksums that hold, whatever its rows say."""
    for row in range(SPARSE.depth):
        begin = REPLY_HEAD + row * ROW
        checksum = crc32c(bytes(answer[begin + 16 : begin + ROW]))
        struct.pack_into("<I", answer, begin + 12, checksum)
    reply = crc32c(bytes(answer[16 : REPLY - 4]))
    struct.pack_into("<I", answer, REPLY - 4, reply)
    struct.pack_into("<I", answer, len(answer) - 8, reply)
    struct.pack_into("<I", answer, len(answer) - 4, crc32c(bytes(answer[REPLY + 16 : -4])))
    return bytes(answer)


VALUES = (0, 1, 2, 3, 6, 7, PAD_ID, 1 << 31, 0x3F800000, 0x3F000000, 0x3E800000, 0x7F800000, 1)


@pytest.mark.parametrize("row", range(SPARSE.depth))
def test_every_word_of_a_row_is_judged(row: int) -> None:
    """Checksums are right all along: position, token, entries, ids and counts themselves are."""
    reasons = set()
    for word, value in product(range(ROW // 4), VALUES):

        def craft(answer: bytes, word: int = word, value: int = value) -> bytes:
            damaged = bytearray(answer)
            begin = REPLY_HEAD + row * ROW + 4 * word
            struct.pack_into("<I", damaged, begin, value & 0xFFFFFFFF)
            return sealed(damaged)

        first = damaged_by(craft)[0]
        reasons.add(first.detail if isinstance(first, Dropped) else type(first).__name__)
    assert len(reasons) > 8, reasons


def test_rows_with_pads_have_only_their_entries() -> None:
    def narrow(answer: bytes) -> bytes:
        """One entry with all tickets, which every word draws."""
        damaged = bytearray(answer)
        words = [1, *[PAD_ID & 0xFFFFFFFF] * (SUPPORT - 1), 0x3F800000, *[0] * (SUPPORT - 1)]
        token = struct.unpack_from("<i", damaged, REPLY_HEAD + 4)[0]
        words[0] = token
        struct.pack_into("<I", damaged, REPLY_HEAD + 8, 1)
        struct.pack_into(f"<{2 * SUPPORT}I", damaged, REPLY_HEAD + 16, *words)
        return sealed(damaged)

    (_, rows, *_) = damaged_by(narrow)[0]
    assert rows[0].counts == (TOTAL,)
    assert len(rows[1].counts) == SUPPORT


def test_a_token_that_its_word_does_not_draw_fails_the_audit() -> None:
    def swap(answer: bytes) -> bytes:
        damaged = bytearray(answer)
        token, ids = (
            struct.unpack_from("<i", damaged, REPLY_HEAD + 4)[0],
            struct.unpack_from(f"<{SUPPORT}i", damaged, REPLY_HEAD + 16),
        )
        other = next(each for each in ids if each != token)
        struct.pack_into("<i", damaged, REPLY_HEAD + 4, other)
        return sealed(damaged)

    dropped = damaged_by(swap)[0]
    assert isinstance(dropped, Dropped)
    assert dropped.reason is DropReason.AUDIT_FAILED


def test_what_comes_late_or_twice_is_counted_as_two_messages() -> None:
    pair = Pair()
    answer = pair.ask()
    pair.session.give_up()
    (_, drops, *_), *_ = pair.result(answer)
    assert drops[DropReason.STALE] == 2
    pair.session.commit(0, Outcome.TARGET_ONLY, 1)
    twice = pair.ask()
    _, (_, drops, *_), *_ = pair.result(twice, twice, answer)
    assert (drops[DropReason.STALE], drops[DropReason.DUPLICATE]) == (4, 2)


def test_a_second_answer_does_not_change_the_q_of_the_first() -> None:
    """It is as good, and of another q: the draws were audited against that of the first."""
    pair = Pair()
    answer = pair.ask()
    other, values = bytearray(answer), REPLY_HEAD + 16 + 4 * SUPPORT
    other[values : values + 8] = answer[values + 4 : values + 8] + answer[values : values + 4]
    assert other != answer
    (proposal,) = pair.feed(answer)
    assert isinstance(proposal, Proposal)
    rows = [row.exact() for row in proposal.rows]
    assert list(pair.feed(sealed(other))) == []
    assert [row.exact() for row in proposal.rows] == rows
    assert pair.session.drops == {DropReason.DUPLICATE: 2}


def test_an_answer_that_follows_its_own_reply_is_taken_once() -> None:
    """REPLY alone, then all of the answer: the first half of that is there already."""
    pair = Pair()
    answer = pair.ask()
    (_, *_), (_, drops, *_), *_ = pair.result(answer[:REPLY], answer)
    assert drops == {DropReason.DUPLICATE: 1}


def test_a_late_answer_writes_into_no_other_rounds_rows() -> None:
    pair = Pair()
    late = pair.ask()
    pair.session.give_up()
    pair.session.commit(0, Outcome.TARGET_ONLY, 1)
    answer = pair.ask()
    (proposal,) = pair.feed(answer)
    assert isinstance(proposal, Proposal)
    rows = [np.array(row.counts) for row in proposal.rows]
    assert list(pair.feed(late)) == []
    assert all((row.counts == kept).all() for row, kept in zip(proposal.rows, rows, strict=True))
