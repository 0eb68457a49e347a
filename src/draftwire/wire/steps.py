"""A STEP in one go: read where every field is right, and written where it is usual.

What is not read here, the codec reads field by field, which alone decides how a STEP is refused. A
policy is checked there too, once; its bytes are recognised from then on. What is not written here,
with hidden rows or a field that does not fit, the codec encodes, which alone says what is wrong.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from draftwire.wire.agreement import Agreed
from draftwire.wire.checksum import extend
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.frames import frame_header
from draftwire.wire.messages import CommitRider, ProposalPolicy, Step
from draftwire.wire.registry import MessageType, Outcome, WireVersion

POLICIES_KEPT: Final = 64  # of a connection, whatever comes

_TABLE: Final = PAYLOAD_TABLES[MessageType.STEP]
_STEP: Final = struct.Struct(_TABLE.format)
_POLICY: Final = slice(_TABLE.offset("temperature"), _TABLE.offset("context_version"))
_NO_DRAFTS: Final = (Outcome.NONE, Outcome.TARGET_ONLY)  # outcomes of a round that accepts none
_OUTCOMES: Final = {int(outcome): outcome for outcome in Outcome}
_TYPE: Final = MessageType.STEP
_DIGEST_BYTES: Final = 16
_TRAILER: Final = struct.Struct("<I")


def read_step(payload: memoryview, agreed: Agreed) -> Step | None:
    """Return the STEP of a payload of at least its fixed size, or None: see the module."""
    (
        session,
        slot,
        layout,
        ended,
        generation,
        round_,
        anchor,
        first,
        depth,
        accepted,
        ridden,
        *rest,
    ) = _STEP.unpack_from(payload)
    *_, context_version, key, digest, base, count, hidden_rows, reserved = rest
    policy = agreed.policies.get((layout, depth, payload[_POLICY].tobytes()))
    outcome = _OUTCOMES.get(ended)
    right = (
        policy is not None
        and outcome is not None
        and session
        and generation
        and slot < agreed.max_slots
        and first == anchor + 1 == base + count
        and ridden < round_
        and (ridden == 0) is (outcome is Outcome.NONE)
        and accepted <= agreed.max_depth
        and not (accepted and outcome in _NO_DRAFTS)
        and not (hidden_rows or reserved)
        and len(payload) == _STEP.size + 4 * count
    )
    if policy is None or outcome is None or not right:
        return None
    tokens = struct.unpack_from(f"<{count}i", payload, _STEP.size)
    if tokens and not (min(tokens) >= 0 and max(tokens) < agreed.vocab_size):
        return None
    rider = CommitRider(ridden, accepted, outcome)
    return Step(
        session,
        slot,
        generation,
        round_,
        anchor,
        policy,
        rider,
        context_version,
        key,
        digest,
        base,
        tokens,
    )


def remember(payload: memoryview, policy: ProposalPolicy, agreed: Agreed) -> None:
    """Keep a policy that was read from this payload and checked; v1, which is slow, keeps none."""
    if agreed.version is not WireVersion.V2:
        return
    if len(agreed.policies) >= POLICIES_KEPT:
        agreed.policies.clear()  # who uses more than these is met again soon enough
    agreed.policies[policy.layout, policy.depth, payload[_POLICY].tobytes()] = policy


@lru_cache(maxsize=64)
def _payload(count: int) -> struct.Struct:
    """The payload of a STEP with so many tokens; they are few, and come again and again."""
    return struct.Struct(f"{_TABLE.format}{count}i")


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
    header = frame_header(version, _TYPE, len(payload))
    return header + payload + _TRAILER.pack(extend(0, payload))
