"""P3, P5 and P18: payloads decode to exactly one message, canonically, or to one ProtocolError."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.agreement import Agreed
from draftwire.wire.checks import checked
from draftwire.wire.codec import decode, encode, message_type
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.messages import (
    CommitRider,
    Message,
    Ping,
    ProposalPolicy,
    Reply,
    ReplyRow,
    ReplyRows,
)
from draftwire.wire.registry import (
    PAYLOAD_FIELDS,
    TOTAL,
    Layout,
    LayoutSet,
    MessageType,
    Outcome,
    Status,
    WireVersion,
)
from spec.oracle import frames as oracle
from testing.harness.messages import (
    AGREED,
    AGREED_MIRRORED,
    AGREED_STATES,
    AGREED_V1,
    COMPLETE,
    EXAMPLES,
    HANDSHAKE,
    REPLY,
    STEP,
    VERIFIER,
    messages,
    payload_of,
)

V2 = WireVersion.V2
CODE = ProtocolErrorCode
EVERY = (*EXAMPLES, *HANDSHAKE)
EARLY = (MessageType.HELLO, MessageType.ERROR)


def decoded(message: Message, agreed: Agreed | None = AGREED, version: WireVersion = V2) -> Message:
    return decode(message_type(message), version, memoryview(payload_of(message)), agreed)


def offset_of(kind: MessageType, name: str) -> tuple[int, str]:
    """Return where a field stands in its payload, and its kind."""
    offset = 0
    for field in PAYLOAD_FIELDS[kind]:
        if field.name == name:
            return offset, field.kind
        offset += oracle.kind_bytes(field.kind)
    raise KeyError(name)


def refused(
    message: Message,
    changes: Mapping[str, Any],
    agreed: Agreed | None = AGREED,
    version: WireVersion = V2,
) -> ProtocolError:
    payload = memoryview(payload_of(message))
    for name, value in changes.items():
        offset, kind = offset_of(message_type(message), name)
        raw = value if isinstance(value, bytes) else oracle.write_field(kind, value)
        patched = bytearray(payload)
        patched[offset : offset + len(raw)] = raw
        payload = memoryview(patched)
    with pytest.raises(ProtocolError) as caught:
        decode(message_type(message), version, payload, agreed)
    return caught.value


@pytest.mark.parametrize("message", EVERY, ids=lambda m: message_type(m).name)
def test_examples_come_back(message: Message) -> None:
    assert decoded(message) == message


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_valid_message_comes_back_in_both_versions(data: st.DataObject) -> None:
    agreed = data.draw(st.sampled_from([AGREED, AGREED_V1, AGREED_MIRRORED, AGREED_STATES]))
    message = data.draw(messages(agreed))
    assert decoded(message, agreed, agreed.version) == message


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_bytes_are_a_message_that_encodes_to_them_or_one_protocol_error(
    data: st.DataObject,
) -> None:
    """The codec's sentence; mutated payloads of valid messages and plain noise."""
    agreed = data.draw(st.sampled_from([AGREED, AGREED_V1, AGREED_MIRRORED, AGREED_STATES, None]))
    limits = agreed or AGREED
    message = data.draw(messages(limits))
    kind = data.draw(st.one_of(st.just(message_type(message)), st.sampled_from(MessageType)))
    payload = bytearray(data.draw(st.one_of(st.just(payload_of(message)), st.binary(max_size=300))))
    for _ in range(data.draw(st.integers(0, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(payload)), st.integers(0, len(payload))))
    try:
        result = decode(kind, limits.version, memoryview(payload)[:cut], agreed)
    except ProtocolError:
        return
    assert b"".join(encode(result)) == bytes(payload[:cut])


DENSE_STEP = replace(STEP, policy=ProposalPolicy(Layout.DENSE, 2, 0.0), hidden_rows=0, hidden=b"")
FIRST_STEP = replace(STEP, round=1, commit=CommitRider(0, 0, Outcome.NONE))
DECLINED = replace(COMPLETE, status=Status.NO_SLOT, reply_bytes=0, reply_checksum=0)
DENSE_REPLY = replace(
    REPLY,
    layout=Layout.DENSE,
    support=11,
    rows=ReplyRows.of(ReplyRow(6 + i, 4, 11, 99, bytes(44)) for i in range(2)),
)
V1_STEP = replace(
    STEP, policy=ProposalPolicy(Layout.IDS_ONLY, 2, 0.0), proposal_key=0, hidden_rows=0, hidden=b""
)
V1_REPLY = replace(
    REPLY, layout=Layout.IDS_ONLY, support=0, rows=ReplyRows.of([ReplyRow(6, 4, 0, 0, b"")])
)
FLIPPED: list[tuple[Message, Agreed]] = [
    *((message, AGREED) for message in EVERY),
    *((each, AGREED) for each in (DENSE_STEP, FIRST_STEP, DECLINED, DENSE_REPLY)),
    *((each, AGREED_V1) for each in (V1_STEP, V1_REPLY)),
]


@pytest.mark.parametrize(
    ("message", "agreed"),
    FLIPPED,
    ids=lambda each: "" if isinstance(each, Agreed) else message_type(each).name,
)
def test_every_changed_byte_is_another_message_or_what_the_checks_alone_refuse(
    message: Message, agreed: Agreed
) -> None:
    """Every bit of every message, and every byte as its neighbours, 0 and 255: what is decoded at
    once and what the checks explain are one and the same rule."""
    kind, original, version = message_type(message), payload_of(message), agreed.version
    assert decode(kind, version, memoryview(original), agreed) == message
    for at, byte in enumerate(original):
        changes = {byte ^ 1 << bit for bit in range(8)} | {0, 255, (byte + 1) % 256, byte - 1 & 255}
        for value in changes - {byte}:
            payload = memoryview(original[:at] + bytes([value]) + original[at + 1 :])
            expected = None
            try:
                checked(kind, version, payload, agreed)
            except ProtocolError as error:
                expected = error.code, error.field, str(error)
            try:
                result = decode(kind, version, payload, agreed)
            except ProtocolError as error:
                assert (error.code, error.field, str(error)) == expected
                continue
            assert expected is None
            assert payload_of(result) == payload
            assert result != message


@pytest.mark.parametrize("message", EVERY, ids=lambda m: message_type(m).name)
def test_every_other_length_is_refused(message: Message) -> None:
    payload = payload_of(message)
    for length in range(len(payload)):
        with pytest.raises(ProtocolError) as caught:
            decode(message_type(message), V2, memoryview(payload[:length]), AGREED)
        assert caught.value.code == CODE.BAD_LENGTH
    for extra in (b"\0", b"\0" * 4, b"\0" * 16):
        with pytest.raises(ProtocolError) as caught:
            decode(message_type(message), V2, memoryview(payload + extra), AGREED)
        assert caught.value.code == CODE.BAD_LENGTH


@pytest.mark.parametrize("message", EVERY, ids=lambda m: message_type(m).name)
def test_the_oracle_reads_the_same_fields(message: Message) -> None:
    """Tables written from SPEC alone say the same about every byte of the fixed part."""
    kind = message_type(message)
    fields, _ = oracle.read_fields(kind.name, payload_of(message))
    ours = PAYLOAD_TABLES[kind].unpack(memoryview(payload_of(message)))
    assert {name: value for name, value in fields.items() if "reserved" not in name} == ours
    assert PAYLOAD_TABLES[kind].bytes == oracle.table_bytes(kind.name)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (message, field.name)
        for message in EXAMPLES
        for field in PAYLOAD_FIELDS[message_type(message)]
        if field.name.startswith("reserved")
    ],
    ids=str,
)
def test_reserved_fields_are_zero(message: Message, name: str) -> None:
    error = refused(message, {name: b"\x01"})
    assert (error.code, error.field) == (CODE.BAD_PADDING, name)


def test_before_both_hellos_only_hello_and_error_decode() -> None:
    for message in EXAMPLES:
        if message_type(message) in EARLY:
            assert decoded(message, None) == message
        else:
            assert refused(message, {}, None).code == CODE.UNEXPECTED_MESSAGE


def test_another_version_than_the_agreed_one_is_refused() -> None:
    assert refused(Ping(1), {}, AGREED, WireVersion.V1).code == CODE.BAD_VERSION
    assert refused(Ping(1), {}, AGREED_V1, V2).code == CODE.BAD_VERSION


HELLO_REFUSALS: list[tuple[dict[str, Any], ProtocolErrorCode]] = [
    ({"role": 0}, CODE.BAD_FIELD),
    ({"role": 3}, CODE.BAD_FIELD),
    ({"adaptation": 3}, CODE.BAD_FIELD),
    ({"layouts": 0}, CODE.WRONG_VERSION_FOR_LAYOUT),
    ({"layouts": 1}, CODE.WRONG_VERSION_FOR_LAYOUT),
    ({"layouts": 7}, CODE.WRONG_VERSION_FOR_LAYOUT),
    ({"layouts": 8}, CODE.BAD_FIELD),
    ({"vocab_size": 0}, CODE.BAD_FIELD),
    ({"vocab_size": 2**24 + 1}, CODE.LIMIT_EXCEEDED),
    ({"max_sessions": 0}, CODE.BAD_FIELD),
    ({"max_slots": 0}, CODE.BAD_FIELD),
    ({"max_depth": 0}, CODE.BAD_FIELD),
    ({"max_depth": 65}, CODE.LIMIT_EXCEEDED),
    ({"shard_count": 0}, CODE.BAD_FIELD),
    ({"shard_count": 12}, CODE.LIMIT_EXCEEDED),
    ({"max_support": 12}, CODE.LIMIT_EXCEEDED),
    ({"max_context": 0}, CODE.BAD_FIELD),
    ({"max_step_bytes": 0}, CODE.BAD_FIELD),
    ({"max_reply_bytes": 0}, CODE.BAD_FIELD),
    ({"hidden_dtype": 4}, CODE.BAD_FIELD),
    ({"hidden_rows": 1, "hidden_dtype": 0}, CODE.BAD_FIELD),
    ({"hidden_rows": 1, "hidden_width": 0}, CODE.BAD_FIELD),
    ({"q_semantic": b"dyadic24\0x"}, CODE.BAD_PADDING),
    ({"rng_abi": b"with blank"}, CODE.BAD_FIELD),
    ({"precision": b"\xc3\xa9"}, CODE.BAD_FIELD),
]


@pytest.mark.parametrize(("changes", "code"), HELLO_REFUSALS, ids=str)
def test_hello_refusals(changes: dict[str, Any], code: ProtocolErrorCode) -> None:
    error = refused(VERIFIER, changes, None)
    assert error.code == code
    assert error.field in changes


def test_hello_versions_carry_their_own_layouts_alone() -> None:
    """P5: v1 is ids alone, v2 is q; neither becomes the other."""
    ids_only = replace(VERIFIER, layouts=LayoutSet.IDS_ONLY)
    assert decoded(ids_only, None, WireVersion.V1) == ids_only
    for hello, version in ((ids_only, V2), (VERIFIER, WireVersion.V1)):
        error = refused(hello, {}, None, version)
        assert (error.code, error.field) == (CODE.WRONG_VERSION_FOR_LAYOUT, "layouts")


STEP_REFUSALS: list[tuple[dict[str, Any], ProtocolErrorCode]] = [
    ({"session": 0}, CODE.BAD_FIELD),
    ({"generation": 0}, CODE.BAD_FIELD),
    ({"round": 0}, CODE.BAD_FIELD),
    ({"slot": 3}, CODE.LIMIT_EXCEEDED),
    ({"layout": 3}, CODE.BAD_FIELD),
    ({"layout": 0}, CODE.WRONG_VERSION_FOR_LAYOUT),
    ({"first_position": 7}, CODE.BAD_FIELD),
    ({"first_position": 5}, CODE.BAD_FIELD),
    ({"depth": 0}, CODE.BAD_FIELD),
    ({"depth": 5}, CODE.LIMIT_EXCEEDED),
    ({"committed_outcome": 5}, CODE.BAD_FIELD),
    ({"committed_round": 0}, CODE.BAD_FIELD),
    ({"committed_round": 3}, CODE.BAD_FIELD),
    ({"committed_accepted": 5}, CODE.LIMIT_EXCEEDED),
    ({"committed_accepted": 1, "committed_outcome": 3}, CODE.BAD_FIELD),
    ({"temperature": float("nan")}, CODE.BAD_FIELD),
    ({"temperature": float("inf")}, CODE.BAD_FIELD),
    ({"temperature": -1.0}, CODE.BAD_FIELD),
    ({"temperature": -0.0}, CODE.BAD_FIELD),
    ({"temperature": 2.0**-15}, CODE.BAD_FIELD),
    ({"temperature": 2.0**14 + 1}, CODE.BAD_FIELD),
    ({"top_k": 12}, CODE.LIMIT_EXCEEDED),
    ({"top_p": 0}, CODE.BAD_FIELD),
    ({"top_p": TOTAL + 1}, CODE.LIMIT_EXCEEDED),
    ({"min_p": TOTAL + 1}, CODE.LIMIT_EXCEEDED),
    ({"support": 0}, CODE.BAD_FIELD),
    ({"support": 6}, CODE.LIMIT_EXCEEDED),
    ({"support": 3, "layout": 1}, CODE.BAD_FIELD),
    ({"token_count": 2}, CODE.BAD_FIELD),
    ({"base": 4}, CODE.BAD_FIELD),
    ({"hidden_rows": 3}, CODE.LIMIT_EXCEEDED),
    ({"hidden_rows": 2}, CODE.BAD_LENGTH),
    ({"hidden_rows": 0}, CODE.BAD_LENGTH),
    ({"token_count": 2**32 - 1, "base": 7}, CODE.BAD_FIELD),
    ({"base": 0, "token_count": 2**31, "anchor": 2**31 - 1, "first_position": 2**31},
     CODE.BAD_LENGTH),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "code"), STEP_REFUSALS, ids=str)
def test_step_refusals(changes: dict[str, Any], code: ProtocolErrorCode) -> None:
    error = refused(STEP, changes)
    assert error.code == code
    assert error.field is None or error.field in {*changes, "token_count", "committed_round"}


@pytest.mark.parametrize("token", [-1, -2, 11, 2**31 - 1, -(2**31)])
def test_a_committed_id_outside_the_vocabulary_is_refused(token: int) -> None:
    assert refused(replace(STEP, tokens=(10, token, 4)), {}).code == CODE.ID_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("layout", 1, CODE.WRONG_VERSION_FOR_LAYOUT),
        ("layout", 2, CODE.WRONG_VERSION_FOR_LAYOUT),
        ("temperature", 1.0, CODE.BAD_FIELD),
        ("top_k", 1, CODE.BAD_FIELD),
        ("top_p", 5, CODE.BAD_FIELD),
        ("min_p", 5, CODE.BAD_FIELD),
        ("support", 1, CODE.BAD_FIELD),
        ("proposal_key", 1, CODE.BAD_FIELD),
    ],
)
def test_v1_is_greedy_and_nothing_else(name: str, value: Any, code: ProtocolErrorCode) -> None:
    assert decoded(V1_STEP, AGREED_V1, WireVersion.V1) == V1_STEP
    error = refused(V1_STEP, {name: value}, AGREED_V1, WireVersion.V1)
    assert (error.code, error.field) == (code, name)


def test_a_layout_that_was_not_agreed_is_refused() -> None:
    sparse_alone = replace(AGREED, layouts=LayoutSet.SPARSE)
    error = refused(STEP, {"layout": 1, "support": 0}, sparse_alone)
    assert (error.code, error.field) == (CODE.LIMIT_EXCEEDED, "layout")


REPLY_REFUSALS: list[tuple[dict[str, Any], ProtocolErrorCode]] = [
    ({"session": 0}, CODE.BAD_FIELD),
    ({"slot": 3}, CODE.LIMIT_EXCEEDED),
    ({"layout": 9}, CODE.BAD_FIELD),
    ({"layout": 0}, CODE.WRONG_VERSION_FOR_LAYOUT),
    ({"layout": 1}, CODE.BAD_FIELD),
    ({"layout": 1, "support": 11}, CODE.BAD_LENGTH),
    ({"depth": 0}, CODE.BAD_FIELD),
    ({"depth": 5}, CODE.LIMIT_EXCEEDED),
    ({"depth": 1}, CODE.BAD_LENGTH),
    ({"depth": 3}, CODE.BAD_LENGTH),
    ({"support": 0}, CODE.BAD_FIELD),
    ({"support": 6}, CODE.LIMIT_EXCEEDED),
    ({"support": 2**32 - 1}, CODE.LIMIT_EXCEEDED),
    ({"support": 2}, CODE.BAD_LENGTH),
    ({"shard_count": 2}, CODE.WRONG_SHARD),
    ({"shard_count": 0}, CODE.WRONG_SHARD),
    ({"shard_index": 1}, CODE.WRONG_SHARD),
    ({"shard_begin": 1}, CODE.WRONG_SHARD),
    ({"shard_begin": 12}, CODE.WRONG_SHARD),
    ({"shard_end": 10}, CODE.WRONG_SHARD),
    ({"shard_end": 12}, CODE.WRONG_SHARD),
    ({"shard_end": 2**32 - 1}, CODE.WRONG_SHARD),
]


@pytest.mark.parametrize(("changes", "code"), REPLY_REFUSALS, ids=str)
def test_reply_refusals(changes: dict[str, Any], code: ProtocolErrorCode) -> None:
    error = refused(REPLY, changes)
    assert error.code == code


def sharded(index: int, begin: int, end: int) -> Reply:
    q = bytes(4 * (end - begin))
    rows = ReplyRows.of(ReplyRow(6 + i, 4, end - begin, 0, q) for i in range(2))
    return replace(
        REPLY, layout=Layout.DENSE, support=end - begin, rows=rows, shard_index=index,
        shard_count=3, shard_begin=begin, shard_end=end,
    )  # fmt: skip


def test_shards_are_ranges_of_one_vocabulary() -> None:
    """Every contiguous split of V = 11 into three, empty shards too; the ends are fixed."""
    three = replace(AGREED, shard_count=3)
    for first in range(12):
        for second in range(first, 12):
            for index, (begin, end) in enumerate(((0, first), (first, second), (second, 11))):
                reply = sharded(index, begin, end)
                assert decoded(reply, three) == reply
    for index, begin, end in ((0, 1, 4), (2, 4, 10)):
        assert refused(sharded(index, begin, end), {}, three).code == CODE.WRONG_SHARD
    turned = {"shard_begin": 5, "shard_end": 4, "support": 2**32 - 1}
    assert refused(sharded(1, 4, 5), turned, three).code == CODE.WRONG_SHARD
