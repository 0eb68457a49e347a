"""The messages as typed values; :mod:`draftwire.wire.codec` turns them into payloads and back.

Field names, order and meaning are those of :mod:`draftwire.wire.registry`. Reserved fields and
counts that follow from other fields (``token_count``, ``reply.depth``) are not repeated here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, overload

from draftwire.errors import ProtocolErrorCode
from draftwire.wire.fields import POSITION_TABLE
from draftwire.wire.registry import (
    NO_FEATURES,
    TOTAL,
    Adaptation,
    Feature,
    HiddenDtype,
    Layout,
    LayoutSet,
    Outcome,
    Role,
    Status,
)

_ROW: Final = POSITION_TABLE.record


@dataclass(frozen=True, slots=True)
class Hello:
    """What a peer is and how much it will take; see HELLO_FIELDS.

    hidden_layers, projection: of a drafter that reads states of the target (P36); empty otherwise,
    and projection where rows are raw.
    """

    role: Role
    adaptation: Adaptation
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


@dataclass(frozen=True, slots=True)
class ProposalPolicy:
    """How a proposal is made: fixed before the first draw, independent of any drawn token.

    temperature: binary32, 0 (greedy) or 2^-14..2^14. top_k, top_p, min_p: A5-A7, counts of 2^24.
    support: K of the sparse layout, 0 for the others. processors: what the drafter does to its
    logits before all of that (A30), in the encoding of :mod:`draftwire.wire.processors`.
    """

    layout: Layout
    depth: int
    temperature: float
    support: int = 0
    top_k: int = 0
    top_p: int = TOTAL
    min_p: int = 0
    processors: bytes = b""

    @property
    def processor_bytes(self) -> int:
        """Size of the processors."""
        return len(self.processors)


@dataclass(frozen=True, slots=True)
class CommitRider:
    """How the round before ended, carried by the next STEP; round 0 and NONE: there is none."""

    round: int
    accepted: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Step:
    """Ask for one proposal from the committed prefix; see STEP_FIELDS.

    tokens: the committed tokens from position ``base`` up to the anchor. hidden: rows of states, of
    the first ``hidden_rows`` of them (P37); may be empty.
    """

    session: int
    slot: int
    generation: int
    round: int
    anchor: int
    policy: ProposalPolicy
    commit: CommitRider
    context_version: int
    proposal_key: int
    prefix_digest: bytes
    base: int
    tokens: Sequence[int]
    hidden_rows: int = 0
    hidden: bytes | memoryview = b""

    @property
    def first_position(self) -> int:
        """Absolute position of the first draft."""
        return self.anchor + 1

    @property
    def token_count(self) -> int:
        """Committed tokens that are sent along."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class ReplyRow:
    """One position of a proposal, q still as raw bytes.

    Dense: binary32 x shard width. Sparse: int32 ids x K, then binary32 x K, pads at the end.
    """

    position: int
    token: int
    entries: int
    checksum: int
    q: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ReplyRows(Sequence[ReplyRow]):
    """The rows of one reply as they lie in its payload (P12); one is read when it is asked for.

    body: the rows one after the other, each its fixed fields and then ``q_bytes`` of q; it may be a
    view into a receive buffer. Errors: ValueError for a body of another length.
    """

    body: bytes | memoryview
    q_bytes: int

    def __post_init__(self) -> None:
        """Refuse a body that is no whole number of rows."""
        if len(self.body) % (_ROW.size + self.q_bytes):
            raise ValueError(f"{len(self.body)} bytes are no rows with a q of {self.q_bytes}")

    @classmethod
    def of(cls, rows: Iterable[ReplyRow]) -> ReplyRows:
        """Lay rows with equally long q's one after the other; ValueError where they do not fit."""
        parts: list[bytes | memoryview] = []
        for row in rows:
            if parts and len(row.q) != len(parts[1]):
                raise ValueError(f"q's of {len(parts[1])} and of {len(row.q)} bytes in one reply")
            try:
                parts.append(_ROW.pack(row.position, row.token, row.entries, row.checksum))
            except struct.error as error:
                raise ValueError(f"a field is outside its type: {error}") from error
            parts.append(row.q)
        return cls(b"".join(parts), len(parts[1]) if parts else 0)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The sampled ids."""
        starts = range(0, len(self.body), _ROW.size + self.q_bytes)
        return tuple([_ROW.unpack_from(self.body, begin)[1] for begin in starts])

    def __len__(self) -> int:
        """Rows."""
        return len(self.body) // (_ROW.size + self.q_bytes)

    @overload
    def __getitem__(self, index: int) -> ReplyRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ReplyRow, ...]: ...
    def __getitem__(self, index: int | slice) -> ReplyRow | tuple[ReplyRow, ...]:
        """Read one row, or some as a tuple; its q is a part of the body, as that is."""
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} rows")
        begin = index % len(self) * (_ROW.size + self.q_bytes)
        position, token, entries, checksum = _ROW.unpack_from(self.body, begin)
        q = self.body[begin + _ROW.size : begin + _ROW.size + self.q_bytes]
        return ReplyRow(position, token, entries, checksum, q)


@dataclass(frozen=True, slots=True)
class Reply:
    """All positions of one proposal; see REPLY_FIELDS."""

    session: int
    slot: int
    layout: Layout
    generation: int
    round: int
    first_position: int
    prefix_digest: bytes
    context_version: int
    shard_index: int
    shard_count: int
    shard_begin: int
    shard_end: int
    support: int
    rows: ReplyRows
    admitted: int = 0

    @property
    def depth(self) -> int:
        """Positions of the proposal."""
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Complete:
    """Ends a reply, or says why there is none; only after it is a proposal whole."""

    session: int
    slot: int
    status: Status
    generation: int
    round: int
    first_position: int
    prefix_digest: bytes
    context_version: int
    reply_bytes: int
    reply_checksum: int


@dataclass(frozen=True, slots=True)
class Commit:
    """An explicit commit, where no STEP follows to carry it."""

    session: int
    generation: int
    round: int
    outcome: Outcome
    accepted: int
    token: int
    committed: int
    prefix_digest: bytes


@dataclass(frozen=True, slots=True)
class Reset:
    """End a generation and begin the next, from an empty prefix."""

    session: int
    generation: int
    next_generation: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a generation for good and free what it holds."""

    session: int
    generation: int


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """A constant-size refusal; carries numbers and a field name, never free text."""

    code: ProtocolErrorCode
    session: int = 0
    generation: int = 0
    round: int = 0
    field: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""

    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    """I am."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Challenge:
    """Prove that you hold the key; fresh random bytes of the sender."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """I hold the key: what it makes of both nonces for the sender's role."""

    proof: bytes


Message: TypeAlias = (
    Hello
    | Step
    | Reply
    | Complete
    | Commit
    | Reset
    | Cancel
    | ErrorMessage
    | Ping
    | Pong
    | Challenge
    | Proof
)
