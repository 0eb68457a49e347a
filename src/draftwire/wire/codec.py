"""Payloads to messages and back, canonically: what decodes encodes to the same bytes (P3).

The one sentence that the fuzz tests hold this module to: any bytes are a message or exactly one
:class:`ProtocolError`. The messages of a round are validated at once, by one test over their
unpacked fields; only what it refuses goes to :mod:`draftwire.wire.checks`, which names the fault.
All other messages, a few in the life of a request, are checked there alone.

What is checked is the shape of a message and the limits of HELLO. Whether a reply answers its STEP
is the session's to say (P13), and whether its q's are canonical is ``decode_rows``' (P14), so that
a bad proposal costs itself and not the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import copysign
from typing import Any, Final

from draftwire.wire import checks
from draftwire.wire.agreement import Agreed, q_bytes, step_bytes
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
    ReplyRows,
    Reset,
    Step,
)
from draftwire.wire.processors import well_formed
from draftwire.wire.registry import (
    MAX_PROCESSOR_BYTES,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    TOTAL,
    WITH_SUPPORT,
    Layout,
    MessageType,
    Outcome,
    Status,
    WireVersion,
)
from draftwire.wire.states import encode_block, finite, has_block

Parts = list[bytes | memoryview]

_COPY_BELOW: Final = 1 << 16  # bytes of a reply's rows; smaller ones are copied both ways

_STEP: Final = PAYLOAD_TABLES[MessageType.STEP].record
_REPLY: Final = PAYLOAD_TABLES[MessageType.REPLY].record
_COMPLETE: Final = PAYLOAD_TABLES[MessageType.COMPLETE].record

_LAYOUTS: Final = {int(layout): layout for layout in Layout}
_OUTCOMES: Final = {int(outcome): outcome for outcome in Outcome}
_STATUSES: Final = {int(status): status for status in Status}
_NO_DRAFTS: Final = frozenset({Outcome.NONE, Outcome.TARGET_ONLY})

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
_CLASSES: Final = {kind: each for each, kind in MESSAGE_TYPES.items()}


def message_type(message: Message) -> MessageType:
    """Return the type byte that goes with a message."""
    return MESSAGE_TYPES[type(message)]


def encode(message: Message) -> Parts:
    """Return the payload in parts, in order, large rows and hidden rows as they are.

    Raises ValueError when a value does not fit its field: a bug of ours, since what may be said was
    agreed before.
    """
    head = PAYLOAD_TABLES[MESSAGE_TYPES[type(message)]].pack(message)
    if isinstance(message, Step):
        return _step_parts(head, message)
    if isinstance(message, Reply):
        return _reply_parts(head, message)
    if isinstance(message, Hello) and has_block(message.role, message.features):
        head += encode_block(message.hidden_layers, message.projection, message.features)
    return [head]


def decode(
    type: MessageType, version: WireVersion, payload: memoryview, agreed: Agreed | None
) -> Message:
    """Return the message of a payload, or raise ProtocolError.

    ``agreed`` is None before both HELLOs; then only what may come before decodes. Large rows of q
    and hidden rows of the result are views of ``payload``, everything else is copied.
    """
    reader = _READERS.get(type)
    if reader is None:
        return _CLASSES[type](**checks.checked(type, version, payload, agreed))  # type: ignore[no-any-return]
    message = None
    if agreed is not None and version is agreed.version:
        message = reader(payload, agreed)
    if message is None:
        checks.checked(type, version, payload, agreed)
        raise AssertionError(f"a {type.name} is refused, and no check says why")
    return message


def _step_parts(head: bytes, step: Step) -> Parts:
    try:
        tokens = struct.pack(f"<{len(step.tokens)}i", *step.tokens)
    except struct.error as error:
        raise ValueError(f"a token is outside int32: {error}") from error
    parts: Parts = [head + tokens]
    parts += [each for each in (step.hidden, step.policy.processors) if len(each)]
    return parts


def _reply_parts(head: bytes, reply: Reply) -> Parts:
    rows, size = reply.rows, q_bytes(reply.layout, reply.support)
    if rows.q_bytes != size:
        raise ValueError(f"a q of {rows.q_bytes} bytes where the layout takes {size}")
    if len(rows.body) < _COPY_BELOW:
        return [b"".join((head, rows.body))]
    return [head, rows.body]


def _read_step(payload: memoryview, agreed: Agreed) -> Step | None:
    """Return a STEP, None unless everything about it is right."""
    if len(payload) < _STEP.size:
        return None
    (
        session, slot, layout, outcome_number, generation, round_, anchor, first_position, depth,
        accepted, committed_round, temperature, top_k, top_p, min_p, support, context_version,
        proposal_key, digest, base, count, hidden_rows, processor_bytes,
    ) = _STEP.unpack_from(payload)  # fmt: skip
    processors = payload[len(payload) - processor_bytes :].tobytes() if processor_bytes else b""
    policy = _policy(layout, depth, temperature, support, top_k, top_p, min_p, processors, agreed)
    outcome = _OUTCOMES.get(outcome_number)
    if (
        policy is None
        or outcome is None
        or (processor_bytes and not agreed.mirrors)
        or processor_bytes > MAX_PROCESSOR_BYTES
        or not (session and generation)
        or slot >= agreed.max_slots
        or not first_position == anchor + 1 == base + count
        or (proposal_key and policy.layout is Layout.IDS_ONLY)
        or committed_round >= round_
        or (committed_round == 0) is not (outcome is Outcome.NONE)
        or accepted > agreed.max_depth
        or (accepted and outcome in _NO_DRAFTS)
        or hidden_rows > agreed.hidden_rows
        or (hidden_rows >= max(count, 1) and agreed.states is not None)
        or len(payload) != step_bytes(count, hidden_rows, agreed.hidden_row_bytes, processor_bytes)
        or (processors and not well_formed(processors, agreed.vocab_size))
    ):
        return None
    tokens = struct.unpack_from(f"<{count}i", payload, _STEP.size)
    if tokens and not (min(tokens) >= 0 and max(tokens) < agreed.vocab_size):
        return None
    rider = CommitRider(committed_round, accepted, outcome)
    rows = payload[_STEP.size + 4 * count : len(payload) - processor_bytes]
    if hidden_rows and agreed.states is not None and not finite(rows, agreed.hidden_dtype):
        return None
    hidden = rows if hidden_rows else b""
    return Step(
        session, slot, generation, round_, anchor, policy, rider, context_version, proposal_key,
        digest, base, tokens, hidden_rows, hidden,
    )  # fmt: skip


def _policy(
    layout_number: int,
    depth: int,
    temperature: float,
    support: int,
    top_k: int,
    top_p: int,
    min_p: int,
    processors: bytes,
    agreed: Agreed,
) -> ProposalPolicy | None:
    """Return the policy of a STEP, None unless everything about it is right; v1's is greedy."""
    layout = _LAYOUTS.get(layout_number)
    if (
        layout is None
        or layout not in agreed.offered
        or not 1 <= depth <= agreed.max_depth
        or not (
            MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE
            or (temperature == 0 and copysign(1.0, temperature) > 0)
        )
        or top_k > agreed.vocab_size
        or not 1 <= top_p <= TOTAL
        or min_p > TOTAL
        or not (1 <= support <= agreed.max_support if layout in WITH_SUPPORT else support == 0)
        or (layout is Layout.IDS_ONLY and (temperature or top_k or top_p != TOTAL or min_p))
    ):
        return None
    return ProposalPolicy(layout, depth, temperature, support, top_k, top_p, min_p, processors)


def _read_reply(payload: memoryview, agreed: Agreed) -> Reply | None:
    """Return a REPLY, its rows not looked into; None unless everything else is right."""
    if len(payload) < _REPLY.size:
        return None
    (
        session, slot, layout_number, reserved, generation, round_, first_position, digest,
        context_version, depth, index, shards, admitted, begin, end, support,
    ) = _REPLY.unpack_from(payload)  # fmt: skip
    layout = _LAYOUTS.get(layout_number)
    if (
        layout is None
        or layout not in agreed.offered
        or reserved
        or (admitted and not agreed.stops_early)
        or admitted >= depth
        or not (session and generation and round_)
        or slot >= agreed.max_slots
        or not 1 <= depth <= agreed.max_depth
        or not index < shards == agreed.shard_count
        or not begin <= end <= agreed.vocab_size
        or (index == 0 and begin)
        or (index == shards - 1 and end != agreed.vocab_size)
    ):
        return None
    if layout in WITH_SUPPORT:
        sized = 1 <= support <= agreed.max_support
    else:
        sized = support == (end - begin if layout is Layout.DENSE else 0)
    size = q_bytes(layout, support)
    if not sized or len(payload) != _REPLY.size + depth * (POSITION_TABLE.bytes + size):
        return None
    body = payload[_REPLY.size :]
    rows = ReplyRows(body.tobytes() if len(body) < _COPY_BELOW else body, size)
    return Reply(
        session, slot, layout, generation, round_, first_position, digest, context_version, index,
        shards, begin, end, support, rows, admitted,
    )  # fmt: skip


def _read_complete(payload: memoryview, agreed: Agreed) -> Complete | None:
    """Return a COMPLETE, None unless everything about it is right."""
    if len(payload) != _COMPLETE.size:
        return None
    (
        session, slot, status_number, reserved, generation, round_, first_position, digest,
        context_version, size, checksum,
    ) = _COMPLETE.unpack_from(payload)  # fmt: skip
    status = _STATUSES.get(status_number)
    if status is Status.OK:
        sized = checks.LEAST_REPLY_BYTES <= size <= agreed.max_reply_bytes
    else:
        sized = status is not None and size == checksum == 0
    named = session and generation and round_
    if status is None or not sized or reserved or not named or slot >= agreed.max_slots:
        return None
    return Complete(
        session, slot, status, generation, round_, first_position, digest, context_version, size,
        checksum,
    )  # fmt: skip


_READERS: Final[dict[MessageType, Callable[[memoryview, Agreed], Message | None]]] = {
    MessageType.STEP: _read_step,
    MessageType.REPLY: _read_reply,
    MessageType.COMPLETE: _read_complete,
}
"""The messages of a round: read whole, or not at all."""
