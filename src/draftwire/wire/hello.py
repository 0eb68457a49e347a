"""The HELLO of either role: what its model is, and the most that it will ask for or take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from draftwire.wire.agreement import largest_reply_bytes, step_bytes
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.messages import Hello
from draftwire.wire.registry import (
    HIDDEN_ITEM_BYTES,
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


@dataclass(frozen=True, slots=True)
class StateOffer:
    """What a side says of hidden states (P36).

    rows: most rows of a STEP. dtype: of an element; a drafter takes either. width: elements of one
    layer's state. most_layers: that a row may hold. layers, projection: what a drafter reads, and
    the digest of its projection, empty for none. fuses: whether rows may be fused.
    """

    rows: int
    dtype: HiddenDtype
    width: int
    most_layers: int
    layers: tuple[int, ...] = ()
    projection: bytes = b""
    fuses: bool = False

    @property
    def features(self) -> Feature:
        """The bits that stand for it."""
        return Feature.STATES | Feature.FUSED if self.fuses else Feature.STATES

    @property
    def row_bytes(self) -> int:
        """Most bytes of a row."""
        return self.most_layers * self.width * HIDDEN_ITEM_BYTES[self.dtype]


ANY_IDENTITY: Final = bytes(32)
DEFAULT_STATE_ROWS: Final = 256
"""Most rows of hidden states of a STEP: some megabytes."""

_U32_MAX: Final = (1 << 32) - 1
_NO_STATES: Final = StateOffer(0, HiddenDtype.NONE, 0, 0)


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
    states: StateOffer | None = None,
) -> Hello:
    """Return the HELLO of a model, depth and support cut to what the model can do.

    max_context: 0 = the model's; a drafter that reads a prefix's last tokens may name more.
    max_reply_bytes: 0 = what the other limits need. peer_identity: of the other role's checkpoint;
    all zero = any. features: what this side has beyond the protocol of every peer; none in v1.
    states: what it says of hidden states, None = nothing.
    """
    if layouts == LayoutSet.IDS_ONLY:
        features, states = NO_FEATURES, None
    states = states or _NO_STATES
    features |= states.features if states.rows else NO_FEATURES
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
        max_step_bytes=min(
            step_bytes(context, states.rows, states.row_bytes, processors), _U32_MAX
        ),
        max_reply_bytes=min(max_reply_bytes or reply, _U32_MAX),
        hidden_rows=states.rows,
        hidden_dtype=states.dtype,
        hidden_width=states.width,
        q_semantic=Q_SEMANTIC,
        verifier_semantic=VERIFIER_SEMANTIC,
        rng_abi=RNG_ABI,
        precision=PRECISION,
        id_map_hash=model.id_map_hash,
        tokenizer_hash=model.tokenizer_hash,
        draft_identity=draft,
        target_identity=target,
        features=features,
        hidden_layers=states.layers,
        projection=states.projection,
    )


def without_features(hello: Hello) -> Hello:
    """Return the HELLO that offers no extension, for a drafter that knows of none (P33)."""
    return replace(
        hello,
        features=NO_FEATURES,
        hidden_rows=0,
        hidden_dtype=HiddenDtype.NONE,
        hidden_width=0,
    )
