"""What is wrong with a payload, field by field in the order of P3 (and P5, P18).

Each check takes the fields as numbers, replaces enumerations by their members in place, and raises
ProtocolError with the field at the first that is wrong.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NoReturn, TypeVar

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.agreement import (
    Agreed,
    reply_bytes,
    require_carried,
    step_bytes,
    version_of,
)
from draftwire.wire.fields import FIELD_NAMES, PAYLOAD_TABLES
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.processors import decode_processors
from draftwire.wire.registry import (
    MAX_DEPTH,
    MAX_PROCESSOR_BYTES,
    MAX_TEMPERATURE,
    MAX_VOCABULARY,
    MIN_TEMPERATURE,
    STATE_DTYPES,
    TOTAL,
    WITH_SUPPORT,
    Adaptation,
    Feature,
    HiddenDtype,
    Layout,
    LayoutSet,
    MessageType,
    Outcome,
    Role,
    Status,
    WireVersion,
)
from draftwire.wire.states import decode_block, finite, has_block

Values = dict[str, Any]
Number = TypeVar("Number", bound=IntEnum)

LEAST_REPLY_BYTES: Final = reply_bytes(Layout.IDS_ONLY, 1, 1, 0)
"""Payload bytes of the smallest REPLY there is."""

_ALL_LAYOUTS: Final = sum(LayoutSet)
_VARIABLE: Final = frozenset({MessageType.HELLO, MessageType.STEP, MessageType.REPLY})


def checked(
    type: MessageType, version: WireVersion, payload: memoryview, agreed: Agreed | None
) -> Values:
    """Return the fixed fields of a payload, enumerations as members; raise at the first fault.

    This alone says how a payload is refused: there is nothing that it lets through and
    ``codec.decode`` does not, nor the other way round.
    """
    table = PAYLOAD_TABLES[type]
    if payload.nbytes < table.bytes:
        _bad_length(f"{payload.nbytes} bytes are too few for {type.name}")
    if payload.nbytes > table.bytes and type not in _VARIABLE:
        _bad_length(f"{payload.nbytes} bytes are too many for {type.name}")
    values = table.unpack(payload, _unused(type, version, agreed))
    if type is MessageType.HELLO:
        check_hello(values, version)
        check_states_block(values, payload[table.bytes :])
    elif type is MessageType.ERROR:
        check_error(values)
    elif type not in _EARLY:
        if agreed is None:
            raise ProtocolError(
                ProtocolErrorCode.UNEXPECTED_MESSAGE, f"{type.name} came before both HELLOs"
            )
        require_version(version, agreed)
        check_session(values)
        check = CHECKS.get(type)
        if check is not None:
            check(values, payload, agreed)
    return values


def _unused(type: MessageType, version: WireVersion, agreed: Agreed | None) -> str:
    """Return the field that must be zero here, since nothing agreed on what it is for (P33)."""
    if type is MessageType.HELLO and version is WireVersion.V1:
        return "features"
    if type is MessageType.STEP and not (agreed is not None and agreed.mirrors):
        return "processor_bytes"
    if type is MessageType.REPLY and not (agreed is not None and agreed.stops_early):
        return "admitted"
    return ""


def _refuse(code: ProtocolErrorCode, field: str, message: str) -> NoReturn:
    raise ProtocolError(code, f"{field}: {message}", field=field)


def _bad(field: str, message: str) -> NoReturn:
    _refuse(ProtocolErrorCode.BAD_FIELD, field, message)


def _bad_length(message: str) -> NoReturn:
    raise ProtocolError(ProtocolErrorCode.BAD_LENGTH, message)


def _within(values: Values, field: str, least: int, most: int) -> None:
    """Refuse below ``least`` (a value without a meaning) and over ``most`` (a limit)."""
    value = values[field]
    if value < least:
        _bad(field, f"{value} is under {least}")
    if value > most:
        _refuse(ProtocolErrorCode.LIMIT_EXCEEDED, field, f"{value} is over {most}")


def _member(values: Values, field: str, enumeration: type[Number]) -> Number:
    try:
        values[field] = member = enumeration(values[field])
    except ValueError:
        _bad(field, f"{values[field]} is not a {enumeration.__name__}")
    return member


def require_version(version: WireVersion, agreed: Agreed) -> None:
    """The frame's version must be that of the connection (P5)."""
    if version != agreed.version:
        raise ProtocolError(
            ProtocolErrorCode.BAD_VERSION, f"version {version} where {agreed.version} was agreed"
        )


def require_length(actual: int, expected: int) -> None:
    """A payload's length must be what its own fields say."""
    if actual != expected:
        _bad_length(f"{actual} payload bytes where {expected} are due")


def check_hello(values: Values, version: WireVersion) -> None:
    """HELLO: known enumerations, layouts of the frame's version, every limit with a meaning."""
    _member(values, "role", Role)
    _member(values, "adaptation", Adaptation)
    if values["layouts"] & ~_ALL_LAYOUTS:
        _bad("layouts", f"{values['layouts']:#x} has unknown layouts")
    values["layouts"] = LayoutSet(values["layouts"])
    if version_of(values["layouts"]) != version:
        _refuse(
            ProtocolErrorCode.WRONG_VERSION_FOR_LAYOUT,
            "layouts",
            f"{values['layouts']!r} is not what version {version} carries",
        )
    _within(values, "vocab_size", 1, MAX_VOCABULARY)
    for field in ("max_sessions", "max_slots", "max_context", "max_step_bytes", "max_reply_bytes"):
        if not values[field]:
            _bad(field, "is zero")
    _within(values, "max_depth", 1, MAX_DEPTH)
    _within(values, "shard_count", 1, values["vocab_size"])
    _within(values, "max_support", 0, values["vocab_size"])
    values["features"] = Feature(values["features"])
    dtype = _member(values, "hidden_dtype", HiddenDtype)
    if values["hidden_rows"] and (dtype == HiddenDtype.NONE or not values["hidden_width"]):
        _bad("hidden_rows", "rows without an element type or a width")
    if Feature.STATES in values["features"]:
        if not values["hidden_rows"]:
            _bad("hidden_rows", "is zero where states are offered")
        if dtype not in STATE_DTYPES:
            _bad("hidden_dtype", f"{dtype.name} is none that states have")


def check_states_block(values: Values, block: memoryview) -> None:
    """What stands behind HELLO's fields: the layers that a drafter reads, or nothing (P36)."""
    if has_block(values["role"], values["features"]):
        found = decode_block(block.tobytes(), values["features"])
        values["hidden_layers"], values["projection"] = found
    else:
        require_length(block.nbytes, 0)


def check_error(values: Values) -> None:
    """ERROR: a known code, and a field name of the tables or none."""
    _member(values, "code", ProtocolErrorCode)
    if values["field"] and values["field"] not in FIELD_NAMES:
        _bad("field", "is not the name of a field")


def check_session(values: Values) -> None:
    """Session, generation and round start at 1 wherever they occur."""
    for field in ("session", "generation", "round"):
        if values.get(field) == 0:
            _bad(field, "is zero")


def _check_layout(values: Values, agreed: Agreed) -> Layout:
    layout = _member(values, "layout", Layout)
    if layout in agreed.offered:  # all of them belong to the version
        return layout
    if (layout == Layout.IDS_ONLY) != (agreed.version == WireVersion.V1):
        _refuse(
            ProtocolErrorCode.WRONG_VERSION_FOR_LAYOUT,
            "layout",
            f"{layout.name} is not carried by version {agreed.version}",
        )
    _refuse(ProtocolErrorCode.LIMIT_EXCEEDED, "layout", f"{layout.name} was not agreed")


def check_policy(values: Values, agreed: Agreed) -> None:
    """The policy of a STEP; v1 carries the greedy one alone (P5)."""
    layout = _check_layout(values, agreed)
    _within(values, "depth", 1, agreed.max_depth)
    temperature = values["temperature"]
    if math.copysign(1.0, temperature) < 0 or not (
        temperature == 0 or MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE
    ):
        _bad("temperature", f"{temperature} is neither 0 nor 2^-14 to 2^14")
    _within(values, "top_k", 0, agreed.vocab_size)
    _within(values, "top_p", 1, TOTAL)
    _within(values, "min_p", 0, TOTAL)
    if layout in WITH_SUPPORT:
        _within(values, "support", 1, agreed.max_support)
    elif values["support"]:
        _bad("support", f"{layout.name} has none")
    if layout == Layout.IDS_ONLY:
        greedy = {"temperature": 0, "top_k": 0, "top_p": TOTAL, "min_p": 0, "proposal_key": 0}
        for field, value in greedy.items():
            if values[field] != value:
                _bad(field, f"must be {value} in version 1, which is greedy")


def require_policy(agreed: Agreed, policy: ProposalPolicy) -> None:
    """Refuse a policy of this side's own that no STEP can carry here, naming the field."""
    require_carried(agreed, policy)
    if policy.processors:
        decode_processors(policy.processors, agreed.vocab_size)
    fields = ("layout", "depth", "temperature", "top_k", "top_p", "min_p", "support")
    check_policy({name: getattr(policy, name) for name in fields} | {"proposal_key": 0}, agreed)


def check_step(values: Values, payload: memoryview, agreed: Agreed) -> None:
    """STEP: policy, slot, positions, commit rider, hidden rows, length, tokens, processors."""
    check_policy(values, agreed)
    _within(values, "slot", 0, agreed.max_slots - 1)
    if values["first_position"] != values["anchor"] + 1:
        _bad("first_position", "is not anchor + 1")
    if values["base"] + values["token_count"] != values["anchor"] + 1:
        _bad("token_count", "base + token_count is not anchor + 1")
    outcome = _member(values, "committed_outcome", Outcome)
    if (values["committed_round"] == 0) != (outcome == Outcome.NONE):
        _bad("committed_round", "is zero if and only if the outcome is NONE")
    if values["committed_round"] >= values["round"]:
        _bad("committed_round", "is not before this round")
    _check_accepted(values, "committed_accepted", outcome, agreed)
    _within(values, "hidden_rows", 0, agreed.hidden_rows)
    if agreed.states is not None and values["hidden_rows"] >= max(values["token_count"], 1):
        _bad("hidden_rows", "there are no tokens before the anchor for so many")
    _within(values, "processor_bytes", 0, MAX_PROCESSOR_BYTES)
    count, head = values["token_count"], PAYLOAD_TABLES[MessageType.STEP].bytes
    rows, size = values["hidden_rows"], values["processor_bytes"]
    require_length(payload.nbytes, step_bytes(count, rows, agreed.hidden_row_bytes, size))
    check_tokens(struct.unpack_from(f"<{count}i", payload, head), agreed)
    check_states(rows, payload[head + 4 * count : payload.nbytes - size], agreed)
    decode_processors(payload[payload.nbytes - size :].tobytes(), agreed.vocab_size)


def _check_accepted(values: Values, field: str, outcome: Outcome, agreed: Agreed) -> None:
    _within(values, field, 0, agreed.max_depth)
    if values[field] and outcome in (Outcome.NONE, Outcome.TARGET_ONLY):
        _bad(field, f"drafts accepted in a round that ended as {outcome.name}")


def check_tokens(tokens: Sequence[int], agreed: Agreed) -> None:
    """Committed ids lie in [0, V)."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < agreed.vocab_size):
        raise ProtocolError(
            ProtocolErrorCode.ID_OUT_OF_RANGE,
            f"a committed id is outside 0..{agreed.vocab_size - 1}",
            field="token",
        )


def check_states(rows: int, hidden: memoryview, agreed: Agreed) -> None:
    """States of the target are finite; rows that nothing was agreed of are opaque (P37)."""
    if rows and agreed.states is not None and not finite(hidden, agreed.hidden_dtype):
        _bad("hidden_rows", "an element is infinite or not a number")


def check_reply(values: Values, payload: memoryview, agreed: Agreed) -> None:
    """REPLY: layout, depth, shard range and entries a row, from which its size follows (P12)."""
    _within(values, "slot", 0, agreed.max_slots - 1)
    layout = _check_layout(values, agreed)
    _within(values, "depth", 1, agreed.max_depth)
    if values["admitted"] >= values["depth"]:
        _bad("admitted", "is not smaller than the depth; all drafts are 0")
    _check_shard(values, agreed)
    width = values["shard_end"] - values["shard_begin"] if layout == Layout.DENSE else 0
    if layout in WITH_SUPPORT:
        _within(values, "support", 1, agreed.max_support)
    elif values["support"] != width:
        _bad("support", f"{values['support']} where {layout.name} has {width} entries a row")
    support = values["support"]
    require_length(payload.nbytes, reply_bytes(layout, support, values["depth"], support))


def _check_shard(values: Values, agreed: Agreed) -> None:
    code = ProtocolErrorCode.WRONG_SHARD
    count, begin, end = values["shard_count"], values["shard_begin"], values["shard_end"]
    if count != agreed.shard_count:
        _refuse(code, "shard_count", f"{count} where {agreed.shard_count} was agreed")
    if values["shard_index"] >= count:
        _refuse(code, "shard_index", f"{values['shard_index']} of {count}")
    if not begin <= end <= agreed.vocab_size:
        _refuse(code, "shard_end", f"{begin}..{end} is no range inside 0..{agreed.vocab_size}")
    if values["shard_index"] == 0 and begin:
        _refuse(code, "shard_begin", "the first shard begins at 0")
    if values["shard_index"] == count - 1 and end != agreed.vocab_size:
        _refuse(code, "shard_end", f"the last shard ends at {agreed.vocab_size}")


def check_complete(values: Values, _: memoryview, agreed: Agreed) -> None:
    """COMPLETE: sizes only with status OK, and then those of a REPLY that may be."""
    _within(values, "slot", 0, agreed.max_slots - 1)
    if _member(values, "status", Status) == Status.OK:
        _within(values, "reply_bytes", LEAST_REPLY_BYTES, agreed.max_reply_bytes)
        return
    for field in ("reply_bytes", "reply_checksum"):
        if values[field]:
            _bad(field, "is not zero where there is no reply")


def check_commit(values: Values, _: memoryview, agreed: Agreed) -> None:
    """COMMIT: an outcome, and a token in [0, V) unless the text ended before one."""
    outcome = _member(values, "outcome", Outcome)
    if outcome == Outcome.NONE:
        _bad("outcome", "NONE is no outcome of a round")
    _check_accepted(values, "accepted", outcome, agreed)
    token = values["token"]
    if outcome == Outcome.ENDED:
        if token != -1:
            _bad("token", "is not -1 where no token was drawn")
    elif not 0 <= token < agreed.vocab_size:
        _refuse(
            ProtocolErrorCode.ID_OUT_OF_RANGE, "token", f"is outside 0..{agreed.vocab_size - 1}"
        )
    if not values["committed"]:
        _bad("committed", "is zero")


def check_reset(values: Values, _: memoryview, agreed: Agreed) -> None:
    """RESET: the next generation is larger."""
    if values["next_generation"] <= values["generation"]:
        _bad("next_generation", "is not larger than the one that ends")


_EARLY: Final = frozenset({MessageType.CHALLENGE, MessageType.PROOF})  # before both HELLOs, too
CHECKS: Final[dict[MessageType, Callable[[Values, memoryview, Agreed], None]]] = {
    MessageType.STEP: check_step,
    MessageType.REPLY: check_reply,
    MessageType.COMPLETE: check_complete,
    MessageType.COMMIT: check_commit,
    MessageType.RESET: check_reset,
}
"""What is checked of a message beside its fixed length, reserved fields, text and session."""
