"""Why a reply was dropped: the counters of the verifier's side, and which error leads to which."""

from __future__ import annotations

from enum import Enum
from typing import Final

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.registry import Status


class DropReason(Enum):
    """Names of the counters. All but STALE and DUPLICATE cost the round its proposal."""

    STALE = "stale"  # of a round or generation that is over; ignored
    DUPLICATE = "duplicate"  # of the round in flight, once more; ignored
    MISSED_DEADLINE = "missed_deadline"
    WITHDRAWN = "withdrawn"  # reset or cancelled while in flight
    DISCONNECTED = "disconnected"
    CORRUPT = "corrupt"  # a checksum of the reply or of one of its rows
    INCOMPLETE = "incomplete"  # COMPLETE says OK and no REPLY came
    CONFLICT = "conflict"  # two different replies to one round
    UNEXPECTED = "unexpected"  # a message that may not come in this state
    WRONG_SESSION = "wrong_session"
    WRONG_SLOT = "wrong_slot"
    WRONG_GENERATION = "wrong_generation"  # one that was never asked
    WRONG_ROUND = "wrong_round"  # one that was never asked
    WRONG_POSITION = "wrong_position"
    WRONG_DIGEST = "wrong_digest"
    WRONG_CONTEXT = "wrong_context"
    WRONG_LAYOUT = "wrong_layout"
    WRONG_DEPTH = "wrong_depth"
    WRONG_SHARD = "wrong_shard"
    WRONG_SIZE = "wrong_size"
    ID_OUT_OF_RANGE = "id_out_of_range"
    MISSING_Q = "missing_q"
    BAD_Q = "bad_q"  # any other violation of P14
    AUDIT_FAILED = "audit_failed"
    DECLINED_CONTEXT_LIMIT = "declined_context_limit"
    DECLINED_NO_SLOT = "declined_no_slot"
    DECLINED_SHUTTING_DOWN = "declined_shutting_down"
    DECLINED_REFUSED_ARITHMETIC = "declined_refused_arithmetic"
    DECLINED_INTERNAL = "declined_internal"
    LOST_STATE = "lost_state"  # ERROR: the drafter does not hold the prefix
    REFUSED = "refused"  # ERROR: anything else


_CODE = ProtocolErrorCode

_BY_CODE: Final = {
    _CODE.UNEXPECTED_MESSAGE: DropReason.UNEXPECTED,
    _CODE.BAD_Q_CHECKSUM: DropReason.CORRUPT,
    _CODE.BAD_PAYLOAD_CHECKSUM: DropReason.CORRUPT,
    _CODE.WRONG_SESSION: DropReason.WRONG_SESSION,
    _CODE.WRONG_SLOT: DropReason.WRONG_SLOT,
    _CODE.WRONG_GENERATION: DropReason.WRONG_GENERATION,
    _CODE.WRONG_ROUND: DropReason.WRONG_ROUND,
    _CODE.WRONG_POSITION: DropReason.WRONG_POSITION,
    _CODE.WRONG_DIGEST: DropReason.WRONG_DIGEST,
    _CODE.WRONG_SHARD: DropReason.WRONG_SHARD,
    _CODE.WRONG_SIZE: DropReason.WRONG_SIZE,
    _CODE.ID_OUT_OF_RANGE: DropReason.ID_OUT_OF_RANGE,
    _CODE.MISSING_Q: DropReason.MISSING_Q,
    _CODE.AUDIT_FAILED: DropReason.AUDIT_FAILED,
    _CODE.DUPLICATE_ROUND: DropReason.CONFLICT,
}

_BY_FIELD: Final = {
    "context_version": DropReason.WRONG_CONTEXT,
    "layout": DropReason.WRONG_LAYOUT,
    "depth": DropReason.WRONG_DEPTH,
    "reply_bytes": DropReason.WRONG_SIZE,
    "status": DropReason.INCOMPLETE,
}

DECLINED: Final = {
    Status.CONTEXT_LIMIT: DropReason.DECLINED_CONTEXT_LIMIT,
    Status.NO_SLOT: DropReason.DECLINED_NO_SLOT,
    Status.SHUTTING_DOWN: DropReason.DECLINED_SHUTTING_DOWN,
    Status.REFUSED_ARITHMETIC: DropReason.DECLINED_REFUSED_ARITHMETIC,
    Status.INTERNAL: DropReason.DECLINED_INTERNAL,
}
"""The reason for each status of COMPLETE other than OK."""

LOST_CODES: Final = frozenset(
    {_CODE.UNKNOWN_PREFIX, _CODE.UNKNOWN_SESSION, _CODE.WRONG_DIGEST, _CODE.COMMIT_MISMATCH}
)
"""Codes of an ERROR that say that the two prefixes have come apart."""


def reason_of(error: ProtocolError) -> DropReason:
    """Return the counter that a violation found in a reply is booked under; P14 codes are BAD_Q."""
    if error.code is _CODE.BAD_FIELD:
        return _BY_FIELD.get(error.field or "", DropReason.UNEXPECTED)
    return _BY_CODE.get(error.code, DropReason.BAD_Q)
