"""Payloads to messages and back, canonically: what decodes encodes to the same bytes (P3).

The one sentence that the fuzz tests hold this module to: any bytes are a message or exactly one
:class:`ProtocolError`. What is checked here is the shape of a message and the limits of HELLO.
Whether a reply answers its STEP is the session's to say (P13), and whether its q's are canonical is
``decode_reply_rows``' (P14), so that a bad proposal costs itself and not the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire import checks
from draftwire.wire.agreement import Agreed, q_bytes, reply_bytes, step_bytes
from draftwire.wire.fields import PAYLOAD_TABLES, POSITION_TABLE
from draftwire.wire.messages import (
    Cancel,
    Challenge,
    Commit,
    CommitRider,
    Complete,
    ErrorMessage,
    Hello,
    Message,
    Ping,
    Pong,
    Proof,
    ProposalPolicy,
    Reply,
    ReplyRow,
    Reset,
    Step,
)
from draftwire.wire.registry import Layout, MessageType, WireVersion
from draftwire.wire.rows import PackedRows
from draftwire.wire.steps import read_step, remember

Parts = list[bytes | memoryview]

_JOIN_BELOW: Final = 4096  # bytes of one q; smaller ones are copied, larger ones stay in place
_STEP_BYTES: Final = PAYLOAD_TABLES[MessageType.STEP].bytes
_REPLY_BYTES: Final = PAYLOAD_TABLES[MessageType.REPLY].bytes

MESSAGE_TYPES: Final[dict[type[Any], MessageType]] = {
    Hello: MessageType.HELLO,
    Step: MessageType.STEP,
    Reply: MessageType.REPLY,
    Complete: MessageType.COMPLETE,
    Commit: MessageType.COMMIT,
    Reset: MessageType.RESET,
    Cancel: MessageType.CANCEL,
    ErrorMessage: MessageType.ERROR,
    Ping: MessageType.PING,
    Pong: MessageType.PONG,
    Challenge: MessageType.CHALLENGE,
    Proof: MessageType.PROOF,
}


def message_type(message: Message) -> MessageType:
    """Return the type byte that goes with a message."""
    return MESSAGE_TYPES[type(message)]


def encode(message: Message) -> Parts:
    """Return the payload in parts, in order, large q's and hidden rows as they are.

    Raises ValueError when a value does not fit its field: a bug of ours, since what may be said was
    agreed before.
    """
    if isinstance(message, Step):
        return _encode_step(message)
    if isinstance(message, Reply):
        return _encode_reply(message)
    return [PAYLOAD_TABLES[message_type(message)].pack(message)]


def decode(
    type: MessageType, version: WireVersion, payload: memoryview, agreed: Agreed | None
) -> Message:
    """Return the message of a payload, or raise ProtocolError.

    ``agreed`` is None before both HELLOs; then only what may come before decodes. Large q's
    and hidden rows of the result are views of ``payload``, everything else is copied.
    """
    table = PAYLOAD_TABLES[type]
    if payload.nbytes < table.bytes:
        raise ProtocolError(
            ProtocolErrorCode.BAD_LENGTH, f"{payload.nbytes} bytes are too few for {type.name}"
        )
    if payload.nbytes > table.bytes and type not in (MessageType.STEP, MessageType.REPLY):
        raise ProtocolError(
            ProtocolErrorCode.BAD_LENGTH, f"{payload.nbytes} bytes are too many for {type.name}"
        )
    if type is MessageType.STEP and agreed is not None and version is agreed.version:
        step = read_step(payload, agreed)
        if step is not None:
            return step
    values = table.unpack(payload)
    early = _EARLY_DECODERS.get(type)
    if early is not None:
        return early(values, version)
    if agreed is None:
        raise ProtocolError(
            ProtocolErrorCode.UNEXPECTED_MESSAGE, f"{type.name} came before both HELLOs"
        )
    checks.require_version(version, agreed)
    message = _DECODERS[type](values, payload[table.bytes :], agreed)
    if isinstance(message, Step):
        remember(payload, message.policy, agreed)
    return message


def _encode_step(step: Step) -> Parts:
    head = PAYLOAD_TABLES[MessageType.STEP].pack(step)
    try:
        tokens = struct.pack(f"<{len(step.tokens)}i", *step.tokens)
    except struct.error as error:
        raise ValueError(f"a token is outside int32: {error}") from error
    return [head + tokens, step.hidden] if len(step.hidden) else [head + tokens]


def _encode_reply(reply: Reply) -> Parts:
    size = q_bytes(reply.layout, reply.support)
    return encode_rows(PAYLOAD_TABLES[MessageType.REPLY].pack(reply), reply.rows, size)


def encode_rows(head: bytes, rows: Sequence[ReplyRow], size: int) -> Parts:
    """Return the payload of a REPLY: its fixed fields, then rows whose q's are ``size`` bytes."""
    if isinstance(rows, PackedRows) and rows.q_bytes == size:
        return [head + rows.body]
    parts: Parts = [head]
    for row in rows:
        if len(row.q) != size:
            raise ValueError(f"a q of {len(row.q)} bytes where the layout takes {size}")
        parts.append(POSITION_TABLE.pack_values(row.position, row.token, row.entries, row.checksum))
        parts.append(row.q)
    return [b"".join(parts)] if size < _JOIN_BELOW else parts


def _decode_hello(values: dict[str, Any], version: WireVersion) -> Hello:
    checks.check_hello(values, version)
    return Hello(**values)


def _decode_error(values: dict[str, Any], _: WireVersion) -> ErrorMessage:
    checks.check_error(values)
    return ErrorMessage(**values)


def _decode_challenge(values: dict[str, Any], _: WireVersion) -> Challenge:
    return Challenge(**values)


def _decode_proof(values: dict[str, Any], _: WireVersion) -> Proof:
    return Proof(**values)


def _decode_step(values: dict[str, Any], tail: memoryview, agreed: Agreed) -> Step:
    checks.check_session(values)
    checks.check_policy(values, agreed)
    checks.check_step(values, agreed)
    count, rows = values["token_count"], values["hidden_rows"]
    due = step_bytes(count, rows, agreed.hidden_row_bytes)
    checks.require_length(len(tail) + _STEP_BYTES, due)
    tokens = struct.unpack_from(f"<{count}i", tail)
    checks.check_tokens(tokens, agreed)
    return Step(
        session=values["session"],
        slot=values["slot"],
        generation=values["generation"],
        round=values["round"],
        anchor=values["anchor"],
        policy=ProposalPolicy(
            layout=values["layout"],
            depth=values["depth"],
            temperature=values["temperature"],
            support=values["support"],
            top_k=values["top_k"],
            top_p=values["top_p"],
            min_p=values["min_p"],
        ),
        commit=CommitRider(
            round=values["committed_round"],
            accepted=values["committed_accepted"],
            outcome=values["committed_outcome"],
        ),
        context_version=values["context_version"],
        proposal_key=values["proposal_key"],
        prefix_digest=values["prefix_digest"],
        base=values["base"],
        tokens=tokens,
        hidden_rows=rows,
        hidden=tail[4 * count :] if rows else b"",
    )


def _decode_reply(values: dict[str, Any], tail: memoryview, agreed: Agreed) -> Reply:
    checks.check_session(values)
    checks.check_reply(values, agreed)
    layout: Layout = values["layout"]
    depth: int = values.pop("depth")
    support: int = values["support"]
    checks.require_length(len(tail) + _REPLY_BYTES, reply_bytes(layout, support, depth, support))
    return Reply(rows=rows_of(tail, q_bytes(layout, support)), **values)


def rows_of(tail: memoryview, size: int) -> Sequence[ReplyRow]:
    """Return the rows of a reply whose q's are ``size`` bytes; large ones are views."""
    head = POSITION_TABLE.bytes
    if size < _JOIN_BELOW:
        return PackedRows(tail.tobytes(), size)
    rows = []
    for begin in range(0, len(tail), head + size):
        position, token, entries, checksum = POSITION_TABLE.unpack_row(tail, begin)
        q = tail[begin + head : begin + head + size]
        rows.append(ReplyRow(position, token, entries, checksum, q))
    return tuple(rows)


def _decode_complete(values: dict[str, Any], _: memoryview, agreed: Agreed) -> Complete:
    checks.check_session(values)
    checks.check_complete(values, agreed)
    return Complete(**values)


def _decode_commit(values: dict[str, Any], _: memoryview, agreed: Agreed) -> Commit:
    checks.check_session(values)
    checks.check_commit(values, agreed)
    return Commit(**values)


def _decode_reset(values: dict[str, Any], _: memoryview, agreed: Agreed) -> Reset:
    checks.check_session(values)
    checks.check_reset(values)
    return Reset(**values)


def _decode_cancel(values: dict[str, Any], _: memoryview, agreed: Agreed) -> Cancel:
    checks.check_session(values)
    return Cancel(**values)


def _decode_ping(values: dict[str, Any], _: memoryview, agreed: Agreed) -> Ping:
    return Ping(**values)


def _decode_pong(values: dict[str, Any], _: memoryview, agreed: Agreed) -> Pong:
    return Pong(**values)


_EARLY_DECODERS: Final[dict[MessageType, Callable[[dict[str, Any], WireVersion], Message]]] = {
    MessageType.HELLO: _decode_hello,
    MessageType.ERROR: _decode_error,
    MessageType.CHALLENGE: _decode_challenge,
    MessageType.PROOF: _decode_proof,
}
"""Messages that may come before both HELLOs."""

_DECODERS: Final[dict[MessageType, Callable[[dict[str, Any], memoryview, Agreed], Message]]] = {
    MessageType.STEP: _decode_step,
    MessageType.REPLY: _decode_reply,
    MessageType.COMPLETE: _decode_complete,
    MessageType.COMMIT: _decode_commit,
    MessageType.RESET: _decode_reset,
    MessageType.CANCEL: _decode_cancel,
    MessageType.PING: _decode_ping,
    MessageType.PONG: _decode_pong,
}
