"""The HELLO of either role: what its model is, and the most that it will ask for or take."""

from __future__ import annotations

from typing import Final

from draftwire.wire.agreement import largest_reply_bytes, step_bytes
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.messages import Hello
from draftwire.wire.registry import (
    MAX_PROCESSOR_BYTES,
    NO_FEATURES,
    PRECISION,
    Q_SEMANTIC,
    RNG_ABI,
    VERIFIER_SEMANTIC,
    Adaptation,
    Feature,
    HiddenDtype,
    LayoutSet,
    Role,
)

ANY_IDENTITY: Final = bytes(32)
_U32_MAX: Final = (1 << 32) - 1


def hello_of(
    role: Role,
    model: ModelIdentity,
    *,
    adaptation: Adaptation,
    layouts: LayoutSet,
    max_sessions: int,
    max_slots: int,
    max_depth: int,
    max_support: int,
    max_context: int = 0,
    max_reply_bytes: int = 0,
    shard_count: int = 1,
    peer_identity: bytes = ANY_IDENTITY,
    features: Feature = NO_FEATURES,
) -> Hello:
    """Return the HELLO of a model, depth and support cut to what the model can do.

    max_context: 0 = the model's; a drafter that reads a prefix's last tokens may name more.
    max_reply_bytes: 0 = what the other limits need. peer_identity: of the other role's checkpoint;
    all zero = any. features: what this side has beyond the protocol of every peer; none in v1.
    """
    if layouts == LayoutSet.IDS_ONLY:
        features = NO_FEATURES
    processors = MAX_PROCESSOR_BYTES if Feature.MIRROR in features else 0
    support = min(max_support, model.vocab_size)
    context = max_context or model.max_context
    depth = min(max_depth, context - 1)
    reply = largest_reply_bytes(layouts, model.vocab_size, depth, support)
    mine, theirs = model.identity, peer_identity
    draft, target = (mine, theirs) if role is Role.DRAFTER else (theirs, mine)
    return Hello(
        role=role,
        adaptation=adaptation,
        layouts=layouts,
        vocab_size=model.vocab_size,
        max_sessions=max_sessions,
        max_slots=max_slots,
        max_depth=depth,
        shard_count=shard_count,
        max_support=support,
        max_context=context,
        max_step_bytes=step_bytes(context, processor_bytes=processors),
        max_reply_bytes=min(max_reply_bytes or reply, _U32_MAX),
        hidden_rows=0,
        hidden_dtype=HiddenDtype.NONE,
        hidden_width=0,
        q_semantic=Q_SEMANTIC,
        verifier_semantic=VERIFIER_SEMANTIC,
        rng_abi=RNG_ABI,
        precision=PRECISION,
        id_map_hash=model.id_map_hash,
        tokenizer_hash=model.tokenizer_hash,
        draft_identity=draft,
        target_identity=target,
        features=features,
    )
