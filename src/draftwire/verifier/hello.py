"""What a verifier says of itself in HELLO."""

from __future__ import annotations

from draftwire.wire.hello import ANY_IDENTITY, StateOffer, hello_of
from draftwire.wire.identity import ModelIdentity, require_identity
from draftwire.wire.messages import Hello
from draftwire.wire.registry import (
    V2_LAYOUTS,
    Adaptation,
    Feature,
    LayoutSet,
    Role,
    WireVersion,
)


def verifier_hello(
    target: ModelIdentity,
    *,
    version: WireVersion = WireVersion.V2,
    max_sessions: int = 64,
    max_depth: int = 16,
    max_support: int = 1024,
    draft_identity: bytes = ANY_IDENTITY,
    adaptation: Adaptation = Adaptation.ANY,
    shard_count: int = 1,
    features: Feature = Feature.MIRROR,
    states: StateOffer | None = None,
) -> Hello:
    """Return the HELLO of a verifier: what its target is, and the most that it will ask for.

    draft_identity, adaptation: the drafter that is expected; all zero and ANY take any whose
    tokenizer and vocabulary are the target's. shard_count: of how many shards each reply is one.
    features: what is asked for beyond the protocol of every peer.
    """
    require_identity("draft_identity", draft_identity)
    return hello_of(
        Role.VERIFIER,
        target,
        adaptation=adaptation,
        layouts=LayoutSet.IDS_ONLY if version is WireVersion.V1 else V2_LAYOUTS,
        max_sessions=max_sessions,
        max_slots=max_sessions,
        max_depth=max_depth,
        max_support=max_support,
        shard_count=shard_count,
        peer_identity=draft_identity,
        features=features,
        states=states,
    )
