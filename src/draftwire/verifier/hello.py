"""What a verifier says of itself in HELLO."""

from __future__ import annotations

from typing import Final

from draftwire.verifier.engine import TargetIdentity
from draftwire.wire.agreement import largest_reply_bytes, step_bytes
from draftwire.wire.messages import Hello
from draftwire.wire.registry import (
    PRECISION,
    Q_SEMANTIC,
    RNG_ABI,
    VERIFIER_SEMANTIC,
    Adaptation,
    HiddenDtype,
    LayoutSet,
    Role,
    WireVersion,
)

_ANY: Final = bytes(32)
_LARGEST_REPLY: Final = (1 << 32) - 1


def verifier_hello(
    target: TargetIdentity,
    *,
    version: WireVersion = WireVersion.V2,
    max_sessions: int = 64,
    max_depth: int = 16,
    max_support: int = 1024,
    draft_identity: bytes = _ANY,
    adaptation: Adaptation = Adaptation.ANY,
    shard_count: int = 1,
) -> Hello:
    """Return the HELLO of a verifier: what its target is, and the most that it will ask for.

    draft_identity, adaptation: the drafter that is expected; all zero and ANY take any whose
    tokenizer and vocabulary are the target's. shard_count: of how many shards each reply is one.
    """
    both = LayoutSet.DENSE | LayoutSet.SPARSE
    layouts = LayoutSet.IDS_ONLY if version is WireVersion.V1 else both
    depth = min(max_depth, target.max_context - 1)
    support = min(max_support, target.vocab_size)
    reply = largest_reply_bytes(layouts, target.vocab_size, depth, support)
    return Hello(
        role=Role.VERIFIER,
        adaptation=adaptation,
        layouts=layouts,
        vocab_size=target.vocab_size,
        max_sessions=max_sessions,
        max_slots=max_sessions,
        max_depth=depth,
        shard_count=shard_count,
        max_support=support,
        max_context=target.max_context,
        max_step_bytes=step_bytes(target.max_context),
        max_reply_bytes=min(reply, _LARGEST_REPLY),
        hidden_rows=0,
        hidden_dtype=HiddenDtype.NONE,
        hidden_width=0,
        q_semantic=Q_SEMANTIC,
        verifier_semantic=VERIFIER_SEMANTIC,
        rng_abi=RNG_ABI,
        precision=PRECISION,
        id_map_hash=target.id_map_hash,
        tokenizer_hash=target.tokenizer_hash,
        draft_identity=draft_identity,
        target_identity=target.identity,
    )
