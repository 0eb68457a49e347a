"""Payloads whose sizes or numbers do not fit, and how large rows travel."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from typing import Any

import pytest

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.codec import decode, encode, message_type
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.messages import (
    Cancel,
    CommitRider,
    ErrorMessage,
    Message,
    Ping,
    Reply,
    ReplyRow,
    ReplyRows,
    Reset,
    Step,
)
from draftwire.wire.registry import (
    MessageType,
    Outcome,
    Status,
)
from testing.harness.messages import (
    AGREED,
    COMMIT,
    COMPLETE,
    REPLY,
    STEP,
    VERIFIER,
    payload_of,
)
from tests.wire.test_codec import CODE, V2, decoded, refused, sharded


def test_x46_no_other_number_format_has_the_size_that_is_due() -> None:
    """A q in half or double width does not even have the right size; no format is guessed."""
    dense = sharded(0, 0, 11)
    dense = replace(dense, shard_count=1)
    assert decoded(dense) == dense
    for width in (2, 8):
        head = PAYLOAD_TABLES[MessageType.REPLY].bytes
        rows = b"".join(struct.pack("<IiII", 6 + i, 4, 11, 0) + bytes(width * 11) for i in range(2))
        payload = payload_of(dense)[:head] + rows
        with pytest.raises(ProtocolError) as caught:
            decode(MessageType.REPLY, V2, memoryview(payload), AGREED)
        assert caught.value.code == CODE.BAD_LENGTH


@pytest.mark.parametrize(
    ("message", "changes", "code"),
    [
        (COMPLETE, {"status": 6}, CODE.BAD_FIELD),
        (COMPLETE, {"status": 1}, CODE.BAD_FIELD),
        (COMPLETE, {"status": 1, "reply_bytes": 0}, CODE.BAD_FIELD),
        (COMPLETE, {"reply_bytes": 0}, CODE.BAD_FIELD),
        (COMPLETE, {"reply_bytes": 1025}, CODE.LIMIT_EXCEEDED),
        (COMPLETE, {"slot": 3}, CODE.LIMIT_EXCEEDED),
        (COMMIT, {"outcome": 0}, CODE.BAD_FIELD),
        (COMMIT, {"outcome": 5}, CODE.BAD_FIELD),
        (COMMIT, {"outcome": 3}, CODE.BAD_FIELD),
        (COMMIT, {"outcome": 4}, CODE.BAD_FIELD),
        (COMMIT, {"accepted": 5}, CODE.LIMIT_EXCEEDED),
        (COMMIT, {"token": -1}, CODE.ID_OUT_OF_RANGE),
        (COMMIT, {"token": 11}, CODE.ID_OUT_OF_RANGE),
        (COMMIT, {"committed": 0}, CODE.BAD_FIELD),
        (Reset(7, 2, 3), {"next_generation": 2}, CODE.BAD_FIELD),
        (Reset(7, 2, 3), {"generation": 3}, CODE.BAD_FIELD),
        (Cancel(7, 2), {"generation": 0}, CODE.BAD_FIELD),
        (ErrorMessage(CODE.STALE), {"code": 0}, CODE.BAD_FIELD),
        (ErrorMessage(CODE.STALE), {"code": 65535}, CODE.BAD_FIELD),
        (ErrorMessage(CODE.STALE), {"field": "no_such_field"}, CODE.BAD_FIELD),
        (ErrorMessage(CODE.STALE), {"field": b"slot\0x"}, CODE.BAD_PADDING),
    ],
    ids=str,
)
def test_other_refusals(message: Message, changes: dict[str, Any], code: ProtocolErrorCode) -> None:
    assert refused(message, changes).code == code


def test_statuses_without_a_reply_carry_no_sizes() -> None:
    for status in Status:
        if status != Status.OK:
            message = replace(COMPLETE, status=status, reply_bytes=0, reply_checksum=0)
            assert decoded(message) == message


def test_large_rows_are_views_and_parts_small_ones_are_joined() -> None:
    dense = replace(sharded(0, 0, 11), shard_count=1)
    assert len(encode(dense)) == 1
    wide = replace(AGREED, vocab_size=20_000)
    rows = ReplyRows.of(ReplyRow(6 + i, 4, 20_000, 0, bytes(80_000)) for i in range(2))
    rows = ReplyRows(memoryview(rows.body), rows.q_bytes)
    large = replace(dense, support=20_000, shard_end=20_000, rows=rows)
    head, body = encode(large)
    assert body is rows.body
    payload = memoryview(bytearray(head + bytes(body)))
    back = decode(MessageType.REPLY, V2, payload, wide)
    assert back == large
    assert isinstance(back, Reply) and isinstance(back.rows.body, memoryview)
    assert back.rows.body.obj is payload.obj
    small = decode(MessageType.REPLY, V2, memoryview(bytearray(payload_of(REPLY))), AGREED)
    assert isinstance(small, Reply) and isinstance(small.rows.body, bytes)


@pytest.mark.parametrize(
    "message",
    [
        replace(STEP, session=2**64),
        replace(STEP, tokens=(2**31,)),
        replace(STEP, prefix_digest=bytes(15)),
        replace(STEP, commit=CommitRider(-1, 0, Outcome.NONE)),
        replace(REPLY, rows=ReplyRows.of([ReplyRow(6, 4, 2, 99, bytes(23))])),
        replace(VERIFIER, precision="more than sixteen"),
        replace(VERIFIER, rng_abi="with blank"),
        Ping(-1),
    ],
    ids=lambda m: message_type(m).name,
)
def test_what_does_not_fit_its_field_is_our_own_bug(message: Message) -> None:
    with pytest.raises(ValueError):
        encode(message)


def test_every_number_of_a_step_that_does_not_fit_its_field_is_our_own_bug() -> None:
    """Its own, its policy's and its rider's, and a token."""
    steps = [replace(STEP, tokens=(0, value)) for value in (-(1 << 31) - 1, 1 << 31, 0.5)]
    for value in (-1, 1 << 64, 1.5):
        for part, name in ((STEP, None), (STEP.policy, "policy"), (STEP.commit, "commit")):
            for field in fields(part):
                if type(getattr(part, field.name)) is not int or field.name == "hidden_rows":
                    continue
                changed = replace(part, **{field.name: value})
                steps.append(
                    changed if isinstance(changed, Step) else replace(STEP, **{str(name): changed})
                )
    assert len(steps) > 40
    for step in steps:
        with pytest.raises(ValueError):
            encode(step)
