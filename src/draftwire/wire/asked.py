"""A STEP's frame written in one go, where it is usual: no hidden rows, and every field fits.

What is not written here, the codec encodes field by field, which alone says what does not fit.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from draftwire.wire.checksum import extend
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.frames import frame_header
from draftwire.wire.messages import Step
from draftwire.wire.registry import MessageType, WireVersion

STEP: Final = MessageType.STEP
_FORMAT: Final = PAYLOAD_TABLES[STEP].format
_DIGEST_BYTES: Final = 16
_TRAILER: Final = struct.Struct("<I")


@lru_cache(maxsize=64)
def _payload(count: int) -> struct.Struct:
    """The payload of a STEP with so many tokens; they are few, and come again and again."""
    return struct.Struct(f"{_FORMAT}{count}i")


def step_frame(version: WireVersion, step: Step) -> bytes | None:
    """Return the frame of a STEP in one piece, or None: see the module."""
    policy, rider, digest, tokens = step.policy, step.commit, step.prefix_digest, step.tokens
    if step.hidden_rows or step.hidden or type(digest) is not bytes or len(digest) != _DIGEST_BYTES:
        return None
    count = len(tokens)
    try:
        payload = _payload(count).pack(
            step.session,
            step.slot,
            policy.layout,
            rider.outcome,
            step.generation,
            step.round,
            step.anchor,
            step.anchor + 1,
            policy.depth,
            rider.accepted,
            rider.round,
            policy.temperature,
            policy.top_k,
            policy.top_p,
            policy.min_p,
            policy.support,
            step.context_version,
            step.proposal_key,
            digest,
            step.base,
            count,
            0,
            0,
            *tokens,
        )
    except (struct.error, OverflowError):
        return None
    header = frame_header(version, STEP, len(payload))
    return header + payload + _TRAILER.pack(extend(0, payload))
