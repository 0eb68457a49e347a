"""What two peers agree on in HELLO, and the bounds that follow from it (P2, P5-P8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NoReturn

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.fields import PAYLOAD_TABLES, POSITION_TABLE
from draftwire.wire.frames import READ_AHEAD, Bounds
from draftwire.wire.messages import Hello, ProposalPolicy
from draftwire.wire.registry import (
    ENTRY_BYTES,
    FRAME_MAC_BYTES,
    HANDSHAKE_TYPES,
    HEADER_BYTES,
    HIDDEN_ITEM_BYTES,
    MAX_PROCESSOR_BYTES,
    NO_FEATURES,
    SENDERS,
    TRAILER_BYTES,
    WITH_SUPPORT,
    Adaptation,
    Feature,
    HiddenDtype,
    Layout,
    LayoutSet,
    MessageType,
    Role,
    WireVersion,
)
from draftwire.wire.states import MOST_BLOCK_BYTES, StateFormat

_STEP_BYTES: Final = PAYLOAD_TABLES[MessageType.STEP].bytes
_REPLY_BYTES: Final = PAYLOAD_TABLES[MessageType.REPLY].bytes
_ANY_IDENTITY: Final = bytes(32)

EARLY_READ_AHEAD: Final = 1 << 10
"""Bytes read ahead of a peer that nothing is agreed with: its buffer stays small (P23)."""

LEAST_READ_AHEAD: Final = 1 << 11
"""Bytes that a drafter reads ahead of a verifier that has agreed on few slots."""

_EQUAL: Final = (
    "vocab_size",
    "q_semantic",
    "verifier_semantic",
    "rng_abi",
    "precision",
    "id_map_hash",
    "tokenizer_hash",
    "shard_count",
)
_SMALLER: Final = (
    "max_sessions",
    "max_slots",
    "max_depth",
    "max_support",
    "max_context",
    "max_step_bytes",
    "max_reply_bytes",
    "hidden_rows",
)


@dataclass(frozen=True)
class Agreed:
    """The result of HELLO: every limit and every identity of one connection.

    What follows from them is worked out once: every message is held against it.
    """

    layouts: LayoutSet
    vocab_size: int
    max_sessions: int
    max_slots: int
    max_depth: int
    shard_count: int
    max_support: int
    max_context: int
    max_step_bytes: int
    max_reply_bytes: int
    hidden_rows: int
    hidden_dtype: HiddenDtype
    hidden_width: int
    adaptation: Adaptation
    q_semantic: str
    verifier_semantic: str
    rng_abi: str
    precision: str
    id_map_hash: bytes
    tokenizer_hash: bytes
    draft_identity: bytes
    target_identity: bytes
    features: Feature = NO_FEATURES
    hidden_layers: tuple[int, ...] = ()
    projection: bytes = b""

    @cached_property
    def states(self) -> StateFormat | None:
        """What a row of states in STEP holds; None where they were not agreed (P36)."""
        if Feature.STATES not in self.features:
            return None
        fused = Feature.FUSED in self.features
        return StateFormat(self.hidden_layers, self.hidden_width, self.hidden_dtype, fused)

    @cached_property
    def mirrors(self) -> bool:
        """Whether a STEP may hold processors (P33)."""
        return Feature.MIRROR in self.features

    @cached_property
    def stops_early(self) -> bool:
        """Whether a REPLY may admit fewer drafts than were asked for (P35)."""
        return Feature.EARLY_STOP in self.features

    @cached_property
    def version(self) -> WireVersion:
        """The wire version of the connection: v1 is IDS_ONLY and nothing else (P5)."""
        return version_of(self.layouts)

    @cached_property
    def offered(self) -> frozenset[Layout]:
        """The layouts one by one."""
        return frozenset(each for each in Layout if LayoutSet(1 << each) in self.layouts)

    @cached_property
    def hidden_row_bytes(self) -> int:
        """Bytes of one hidden-state row in STEP."""
        if self.states is not None:
            return self.states.row_bytes
        return HIDDEN_ITEM_BYTES[self.hidden_dtype] * self.hidden_width


def version_of(layouts: LayoutSet) -> WireVersion:
    """Return the version whose layouts these are; a mixture of both belongs to neither (P5)."""
    if layouts == LayoutSet.IDS_ONLY:
        return WireVersion.V1
    if layouts and not layouts & LayoutSet.IDS_ONLY:
        return WireVersion.V2
    raise ProtocolError(
        ProtocolErrorCode.WRONG_VERSION_FOR_LAYOUT,
        "layouts must be IDS_ONLY alone (v1), or DENSE and SPARSE (v2)",
        field="layouts",
    )


def agree(mine: Hello, theirs: Hello) -> Agreed:
    """Return what both HELLOs allow (P7, P8), the same seen from either side.

    A verifier sees the drafter's HELLO as the answer to its own, which may lower what was offered
    but not raise it. Raises ProtocolError HELLO_REFUSED with the field.
    """
    if theirs.role == mine.role:
        _refuse("role", f"both peers are a {mine.role.name.lower()}")
    for field in _EQUAL:
        _require_equal(field, getattr(mine, field), getattr(theirs, field))
    smaller = {field: min(getattr(mine, field), getattr(theirs, field)) for field in _SMALLER}
    layouts = mine.layouts & theirs.layouts
    if not layouts:
        _refuse("layouts", f"no common layout: {mine.layouts!r} here, {theirs.layouts!r} there")
    if mine.role == Role.VERIFIER:
        _check_answer(mine, theirs)
    features = _agree_features(mine, theirs)
    if Feature.STATES in (mine.features | theirs.features) & ~features:
        smaller["hidden_rows"] = 0
    hidden = _agree_hidden(mine, theirs, smaller["hidden_rows"], features)
    drafter = mine if mine.role is Role.DRAFTER else theirs
    agreed = Agreed(
        layouts=layouts,
        vocab_size=mine.vocab_size,
        shard_count=mine.shard_count,
        hidden_dtype=hidden[0],
        hidden_width=hidden[1],
        adaptation=_agree_adaptation(mine, theirs),
        q_semantic=mine.q_semantic,
        verifier_semantic=mine.verifier_semantic,
        rng_abi=mine.rng_abi,
        precision=mine.precision,
        id_map_hash=mine.id_map_hash,
        tokenizer_hash=mine.tokenizer_hash,
        draft_identity=_agree_identity(mine, theirs, "draft_identity"),
        target_identity=_agree_identity(mine, theirs, "target_identity"),
        features=features,
        hidden_layers=drafter.hidden_layers if Feature.STATES in features else (),
        projection=drafter.projection if Feature.FUSED in features else b"",
        **smaller,
    )
    _check_sizes(agreed)
    return agreed


def answer(mine: Hello, agreed: Agreed) -> Hello:
    """Return the drafter's own HELLO, holding the agreed values (P6)."""
    shared = (
        *_SMALLER,
        "layouts",
        "features",
        "hidden_layers",
        "projection",
        "hidden_dtype",
        "hidden_width",
        "adaptation",
        "draft_identity",
        "target_identity",
    )
    return replace(mine, **{field: getattr(agreed, field) for field in shared})


def require_carried(agreed: Agreed, policy: ProposalPolicy) -> None:
    """Refuse an agreement that cannot carry the verifier's own policy, naming the field (P7)."""
    if policy.layout not in agreed.offered:
        _refuse("layouts", f"{policy.layout.name} is not among {agreed.layouts!r}")
    if policy.depth > agreed.max_depth:
        _refuse("max_depth", f"depth {policy.depth} is over the agreed {agreed.max_depth}")
    if policy.layout in WITH_SUPPORT and policy.support > agreed.max_support:
        _refuse("max_support", f"support {policy.support} is over the agreed {agreed.max_support}")
    if policy.depth + 1 > agreed.max_context:
        _refuse("max_context", f"depth {policy.depth} leaves no room in {agreed.max_context}")


def q_bytes(layout: Layout, width: int) -> int:
    """Return the bytes of one row's q; ``width`` is the shard's width (dense) or K (sparse)."""
    return ENTRY_BYTES[layout] * width


def reply_bytes(layout: Layout, vocab_size: int, depth: int, support: int) -> int:
    """Return the exact payload bytes of a REPLY (P12): nothing that was drawn is in it.

    ``vocab_size`` is the width of the shard where there are several.
    """
    width = vocab_size if layout == Layout.DENSE else support
    row = POSITION_TABLE.bytes + q_bytes(layout, width)
    return _REPLY_BYTES + depth * row


def step_bytes(
    tokens: int, hidden_rows: int = 0, hidden_row_bytes: int = 0, processor_bytes: int = 0
) -> int:
    """Return the exact payload bytes of a STEP with so many tokens, rows and processors."""
    return _STEP_BYTES + 4 * tokens + hidden_rows * hidden_row_bytes + processor_bytes


def largest_reply_bytes(
    layouts: LayoutSet, vocab_size: int, max_depth: int, max_support: int
) -> int:
    """Return the payload bytes of the largest REPLY that these limits allow (P8)."""
    return max(
        reply_bytes(layout, vocab_size, max_depth, min(max_support, vocab_size))
        for layout in Layout
        if LayoutSet(1 << layout) in layouts
    )


def bounds(
    agreed: Agreed | None,
    *,
    versions: frozenset[WireVersion] = frozenset(WireVersion),
    receiver: Role | None = None,
) -> Bounds:
    """Return the bounds of P2: HELLO and ERROR before agreement, the agreed ones afterwards.

    ``versions`` are those that this side was configured for (they matter before agreement only).
    With ``receiver``, messages that its peer never sends have no bound and may not come.
    """
    limits = {kind: (table.bytes, table.bytes) for kind, table in PAYLOAD_TABLES.items()}
    if agreed is None:
        kinds = {MessageType.HELLO, MessageType.ERROR}
    else:
        versions = frozenset({agreed.version})
        kinds = set(MessageType) - HANDSHAKE_TYPES
        limits[MessageType.STEP] = (step_bytes(0), agreed.max_step_bytes)
        limits[MessageType.REPLY] = (limits[MessageType.REPLY][0], agreed.max_reply_bytes)
    if receiver is not Role.DRAFTER:  # a verifier's HELLO has fixed fields alone
        least = limits[MessageType.HELLO][0]
        limits[MessageType.HELLO] = (least, least + MOST_BLOCK_BYTES)
    if receiver is not None:
        peer = Role.DRAFTER if receiver == Role.VERIFIER else Role.VERIFIER
        kinds = {kind for kind in kinds if peer in SENDERS[kind]}
    ahead = EARLY_READ_AHEAD if agreed is None else READ_AHEAD
    if agreed is not None and receiver is Role.DRAFTER:
        ahead = drafter_read_ahead(agreed)
    return Bounds(versions, {kind: limits[kind] for kind in sorted(kinds)}, ahead)


def drafter_read_ahead(agreed: Agreed) -> int:
    """Return the bytes that a drafter reads of a verifier at once beside the frame it is in.

    They are the STEPs of one round in all its slots, so that those are drafted together; more is
    read after the others have had their turn (P24).
    """
    step = step_bytes(agreed.max_depth + 1) + HEADER_BYTES + TRAILER_BYTES + FRAME_MAC_BYTES
    return min(max(agreed.max_slots * step, LEAST_READ_AHEAD), READ_AHEAD)


def handshake_bounds(due: MessageType, version: WireVersion) -> Bounds:
    """Return the bounds before a key is proved: the message that is due, and ERROR (P20)."""
    sizes = {kind: PAYLOAD_TABLES[kind].bytes for kind in (due, MessageType.ERROR)}
    payload = {kind: (size, size) for kind, size in sizes.items()}
    return Bounds(frozenset({version}), payload, EARLY_READ_AHEAD)


def _refuse(field: str, message: str) -> NoReturn:
    raise ProtocolError(ProtocolErrorCode.HELLO_REFUSED, f"{field}: {message}", field=field)


def _require_equal(field: str, mine: object, theirs: object) -> None:
    if mine != theirs:
        _refuse(field, f"{_shown(mine)} here, {_shown(theirs)} there")


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _agree_adaptation(mine: Hello, theirs: Hello) -> Adaptation:
    if Adaptation.ANY in (mine.adaptation, theirs.adaptation):
        return max(mine.adaptation, theirs.adaptation)
    _require_equal("adaptation", mine.adaptation.name, theirs.adaptation.name)
    return mine.adaptation


def _agree_identity(mine: Hello, theirs: Hello, field: str) -> bytes:
    ours: bytes = getattr(mine, field)
    other: bytes = getattr(theirs, field)
    if _ANY_IDENTITY in (ours, other):
        return max(ours, other)
    _require_equal(field, ours, other)
    return ours


def _agree_features(mine: Hello, theirs: Hello) -> Feature:
    """Those of both; rows are fused only where there are any (P33, P36)."""
    features = mine.features & theirs.features
    return features if Feature.STATES in features else features & ~Feature.FUSED


def _agree_hidden(
    mine: Hello, theirs: Hello, rows: int, features: Feature
) -> tuple[HiddenDtype, int]:
    """The element type is the verifier's and the width the drafter's, where states are agreed."""
    if not rows:
        return HiddenDtype.NONE, 0
    if Feature.STATES in features:
        verifier, drafter = (mine, theirs) if mine.role is Role.VERIFIER else (theirs, mine)
        return verifier.hidden_dtype, drafter.hidden_width
    _require_equal("hidden_dtype", mine.hidden_dtype.name, theirs.hidden_dtype.name)
    _require_equal("hidden_width", mine.hidden_width, theirs.hidden_width)
    return mine.hidden_dtype, mine.hidden_width


def _check_answer(offer: Hello, answered: Hello) -> None:
    for field in _SMALLER:
        if getattr(answered, field) > getattr(offer, field):
            _refuse(
                field, f"{getattr(answered, field)} is over the {getattr(offer, field)} offered"
            )
    if answered.layouts & ~offer.layouts:
        _refuse("layouts", f"{answered.layouts!r} is more than the {offer.layouts!r} offered")
    if answered.features & ~offer.features:
        _refuse("features", f"{answered.features!r} is more than the {offer.features!r} offered")
    if Feature.STATES in answered.features and answered.hidden_dtype != offer.hidden_dtype:
        _require_equal("hidden_dtype", offer.hidden_dtype.name, answered.hidden_dtype.name)


def _check_sizes(agreed: Agreed) -> None:
    """Refuse what cannot carry its own messages, before anything is allocated (P8)."""
    if agreed.offered & WITH_SUPPORT and not agreed.max_support:
        _refuse("max_support", "the sparse layout needs a support of at least 1")
    if agreed.max_depth + 1 > agreed.max_context:
        _refuse("max_context", f"depth {agreed.max_depth} does not fit into {agreed.max_context}")
    reply = largest_reply_bytes(
        agreed.layouts, agreed.vocab_size, agreed.max_depth, agreed.max_support
    )
    if reply > agreed.max_reply_bytes:
        _refuse("max_reply_bytes", f"a reply takes {reply}, over {agreed.max_reply_bytes}")
    processors = MAX_PROCESSOR_BYTES if agreed.mirrors else 0
    step = step_bytes(agreed.max_context, agreed.hidden_rows, agreed.hidden_row_bytes, processors)
    if step > agreed.max_step_bytes:
        _refuse("max_step_bytes", f"a step takes {step}, over {agreed.max_step_bytes}")
