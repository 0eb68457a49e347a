"""The answer to a STEP: all of it but what was drawn is known to whoever asked (P3, P12).

A message has one encoding. So the drafter packs these bytes, the verifier packs them too, and one
comparison holds every fixed field of an answer against what was asked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from draftwire.wire.agreement import reply_bytes
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.frames import frame_header
from draftwire.wire.messages import CommitRider, ProposalPolicy, Step
from draftwire.wire.registry import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Layout,
    MessageType,
    Outcome,
    Status,
    WireVersion,
)
from draftwire.wire.rows import ROW_HEAD_BYTES
from draftwire.wire.values import quickly_made

_DENSE: Final = Layout.DENSE
_OK: Final = Status.OK
_REPLY: Final = PAYLOAD_TABLES[MessageType.REPLY]
_COMPLETE: Final = PAYLOAD_TABLES[MessageType.COMPLETE]
_VARYING: Final = struct.Struct("<II16s")  # round, first_position and prefix_digest, in both
_VARYING_AT: Final = HEADER_BYTES + _REPLY.offset("round")
_ROWS_AT: Final = HEADER_BYTES + _REPLY.bytes

COMPLETE_BYTES: Final = _COMPLETE.bytes
CHECKSUM_BYTES: Final = 4  # of the reply, the last field of COMPLETE
HEAD_BYTES: Final = {
    MessageType.REPLY: _REPLY.bytes,
    MessageType.COMPLETE: _COMPLETE.bytes - CHECKSUM_BYTES,
}
"""Bytes of an answer's payload that follow from its STEP: REPLY's without its rows, COMPLETE's
without the checksum of the reply."""


@quickly_made
@dataclass(frozen=True, slots=True)
class Part:
    """What part of the vocabulary an answer holds, as REPLY names it."""

    rank: int
    size: int
    begin: int
    end: int


@quickly_made
@dataclass(frozen=True, slots=True)
class Expected:
    """A message that may answer a STEP, known but for its tail; ``bytes``: of its payload."""

    session: int
    generation: int
    round: int
    type: MessageType
    bytes: int


@quickly_made
@dataclass(frozen=True, slots=True)
class Outline:
    """The two frames of a whole answer, each up to what was drawn: its header and fixed fields.

    payload_bytes: of REPLY, its rows included. bytes: of both frames, to the end.
    """

    reply: bytes
    complete: bytes
    payload_bytes: int
    bytes: int


def reply_head(step: Step, part: Part) -> bytes:
    """Return the fixed fields of the REPLY to a STEP; ValueError if one is outside its type."""
    policy = step.policy
    return _REPLY.pack_values(
        step.session,
        step.slot,
        policy.layout,
        step.generation,
        step.round,
        step.anchor + 1,
        step.prefix_digest,
        step.context_version,
        policy.depth,
        part.rank,
        part.size,
        part.begin,
        part.end,
        part.end - part.begin if policy.layout is _DENSE else policy.support,
    )


def complete(step: Step, status: Status, size: int, checksum: int) -> bytes:
    """Return the payload of the COMPLETE to a STEP.

    size, checksum: payload bytes and CRC32C of the REPLY; both zero where there is none.
    """
    return _COMPLETE.pack_values(
        step.session,
        step.slot,
        status,
        step.generation,
        step.round,
        step.anchor + 1,
        step.prefix_digest,
        step.context_version,
        size,
        checksum,
    )


@lru_cache(maxsize=64)
def whole_of(vocab_size: int) -> Part:
    """Return the part that is all of a vocabulary."""
    return Part(0, 1, 0, vocab_size)


def outline(step: Step, part: Part) -> Outline:
    """Return the outline of a whole answer to a STEP of wire v2."""
    policy = step.policy
    width = part.end - part.begin
    size, both, first, second = _frames(policy.layout, width, policy.depth, policy.support)
    last = complete(step, _OK, size, 0)
    return Outline(first + reply_head(step, part), second + last[:-CHECKSUM_BYTES], size, both)


def laid_out(step: Step, vocab_size: int, tokens: Sequence[int]) -> bytearray | None:
    """Return memory for both frames of a whole sparse answer to a STEP of wire v2.

    What is known is there, and each row's token; the rest of the rows and all checksums are zeros.
    None where a token is outside its type, or there is another number of them.
    """
    policy, version = step.policy, step.context_version
    named = step.session, step.slot, step.generation, version
    reply, complete, last, size = _known(*named, policy.depth, policy.support, vocab_size)
    frames = bytearray(size)
    frames[:_ROWS_AT] = reply
    frames[last : last + len(complete)] = complete
    varying = step.round, step.anchor + 1, step.prefix_digest
    try:
        _tokens(policy.depth, policy.support).pack_into(frames, _ROWS_AT, *tokens)
        _VARYING.pack_into(frames, _VARYING_AT, *varying)
        _VARYING.pack_into(frames, last + _VARYING_AT, *varying)
    except struct.error:
        return None
    return frames


@lru_cache(maxsize=1024)  # of the generations that are open in this process, few bytes each
def _known(
    session: int,
    slot: int,
    generation: int,
    context_version: int,
    depth: int,
    support: int,
    vocab_size: int,
) -> tuple[bytes, bytes, int, int]:
    """What the sparse answers of one generation have in common, with zeros for what varies.

    Returns the heads of REPLY and COMPLETE, where COMPLETE begins, and the bytes of both frames: a
    plain tuple of plain values, which the garbage collector has no work with once it has seen it.
    """
    policy = ProposalPolicy(Layout.SPARSE, depth, 1.0, support=support)
    rider = CommitRider(0, 0, Outcome.NONE)
    step = Step(
        session, slot, generation, 0, -1, policy, rider, context_version, 0, bytes(16), 0, ()
    )
    known = outline(step, whole_of(vocab_size))
    last = HEADER_BYTES + known.payload_bytes + TRAILER_BYTES
    return known.reply, known.complete, last, known.bytes


@lru_cache(maxsize=64)
def _tokens(depth: int, support: int) -> struct.Struct:
    """The tokens of all rows, each behind its position."""
    behind = ROW_HEAD_BYTES - 8 + 8 * support
    return struct.Struct("<" + f"4xi{behind}x" * depth)


@lru_cache(maxsize=64)
def _frames(layout: Layout, width: int, depth: int, support: int) -> tuple[int, int, bytes, bytes]:
    """Return the sizes of an answer of this shape, and both headers; a connection has few."""
    size = reply_bytes(layout, width, depth, support)
    last = _COMPLETE.bytes
    return (
        size,
        2 * (HEADER_BYTES + TRAILER_BYTES) + size + last,
        frame_header(WireVersion.V2, MessageType.REPLY, size),
        frame_header(WireVersion.V2, MessageType.COMPLETE, last),
    )
