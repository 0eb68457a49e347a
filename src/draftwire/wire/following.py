"""The STEP after a whole proposal: all of it but how that ended is known to whoever proposed (P9).

A message has one encoding. So one comparison holds every fixed byte of the frame against the STEP
before, and what is left are a few numbers.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import groupby
from typing import Final, TypeAlias

from draftwire.wire.checksum import extend
from draftwire.wire.codec import encode
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.messages import Step
from draftwire.wire.registry import (
    HEADER_BYTES,
    TRAILER_BYTES,
    MessageType,
    WireVersion,
)

_TABLE: Final = PAYLOAD_TABLES[MessageType.STEP]
_VARYING: Final = (
    "committed_outcome",
    "round",
    "anchor",
    "first_position",
    "committed_accepted",
    "committed_round",
    "prefix_digest",
    "base",
)
_TOKEN_BYTES: Final = 4
FRAME_BYTES: Final = HEADER_BYTES + _TABLE.bytes + _TOKEN_BYTES + TRAILER_BYTES
"""Of a STEP with one token: a correction or a bonus is all that its drafter lacks."""
_PAYLOAD_END: Final = FRAME_BYTES - TRAILER_BYTES


Following: TypeAlias = tuple[int, int, int, bytes, int, int]
"""What the STEP after a proposal says: outcome and accepted drafts of that, then anchor, digest,
base and token."""


def _structs() -> tuple[struct.Struct, struct.Struct]:
    """Return the frame as what varies between known bytes, and as the known bytes alone."""
    whole, known = [f"{HEADER_BYTES}s"], [f"{HEADER_BYTES}s"]
    for varies, fields in groupby(_TABLE.formats(), lambda field: field[0] in _VARYING):
        formats = [kind for _, kind in fields]
        size = struct.calcsize("<" + "".join(formats))
        whole += formats if varies else [f"{size}s"]
        known.append(f"{size}x" if varies else f"{size}s")
    return struct.Struct("<" + "".join([*whole, "i", "I"])), struct.Struct("<" + "".join(known))


_WHOLE, _KNOWN = _structs()


def known_of(step: Step) -> tuple[bytes, ...]:
    """Return the known bytes of the STEPs that follow this one's proposals, piece by piece.

    They stay the same as long as nothing is asked otherwise: see :func:`asks_alike`.
    """
    step = replace(step, tokens=(0,), hidden_rows=0, hidden=b"")
    frame = frame_bytes(encode_frame(WireVersion.V2, MessageType.STEP, *encode(step)))
    return _KNOWN.unpack_from(frame)


def asks_alike(one: Step, other: Step) -> bool:
    """Whether the STEPs that follow two of one session are known by the same bytes."""
    return (
        one.policy is other.policy
        and one.slot == other.slot
        and one.generation == other.generation
        and one.proposal_key == other.proposal_key
        and one.context_version == other.context_version
    )


def read_following(
    store: memoryview, begin: int, known: tuple[bytes, ...], latest: int
) -> Following | None:
    """Return what the frame at byte ``begin`` says, None unless the rest is known and sound.

    latest: the round whose proposal it has to follow.
    """
    (
        header,
        named,
        outcome,
        generation,
        round_,
        anchor,
        first,
        depth,
        accepted,
        ridden,
        policy,
        digest,
        base,
        rest,
        token,
        checksum,
    ) = _WHOLE.unpack_from(store, begin)
    if (header, named, generation, depth, policy, rest) != known:
        return None
    if round_ != latest + 1 or ridden != latest or first != anchor + 1:
        return None
    if extend(0, bytes(store[begin + HEADER_BYTES : begin + _PAYLOAD_END])) != checksum:
        return None
    return outcome, accepted, anchor, digest, base, token
