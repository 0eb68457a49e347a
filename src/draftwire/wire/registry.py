"""Every number and every field of the wire, in one place; the tables of SPEC are made from it.

All integers are little-endian. A *frame* is ``header || payload || payload checksum``; the header
is magic, version, type, flags, payload length and a CRC32C of those twelve bytes, so that a flipped
length bit is found at once and not by waiting for bytes that never come.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

MAGIC: Final = b"DWIR"
HEADER_BYTES: Final = 16
TRAILER_BYTES: Final = 4
FRAME_MAC_BYTES: Final = 16  # after the trailer of every frame that a proved key protects

NONCE_BYTES: Final = 32
KEY_LABEL: Final = b"draftwire-psk-v1"  # begins everything that a pre-shared key is applied to

TOTAL: Final = 1 << 24  # M
WEIGHT_BITS: Final = 38  # B
WORD_BITS: Final = 24  # b

Q_SEMANTIC: Final = "dyadic24-standard-v1"
VERIFIER_SEMANTIC: Final = "standard-residual-v1"
RNG_ABI: Final = "philox4x32-10-sha256-v1"
PRECISION: Final = "fp32le-m24"

PAD_ID: Final = -1  # the id of a pad entry in a sparse row; its q is +0.0
MAX_VOCABULARY: Final = 1 << 24
MAX_DEPTH: Final = 64
MIN_TEMPERATURE: Final = 2.0**-14
MAX_TEMPERATURE: Final = 2.0**14

MAX_PROCESSOR_BYTES: Final = 1 << 14  # mirrored processors of one STEP, all together
MAX_PROCESSORS: Final = 16
MAX_SEQUENCE: Final = 64  # ids of an n-gram, or of a sequence with a bias
MAX_STATE_LAYERS: Final = 64  # of the target, in a row of hidden states
MAX_PENALTY: Final = 2.0**14  # of any penalty or bias; a repetition penalty is 1 over it or more


class WireVersion(IntEnum):
    """v1 is greedy and carries ids only; v2 carries q. A connection speaks one of them."""

    V1 = 1
    V2 = 2


class MessageType(IntEnum):
    """The type byte of a frame."""

    HELLO = 1
    STEP = 2
    REPLY = 3
    COMPLETE = 4
    COMMIT = 5
    RESET = 6
    CANCEL = 7
    ERROR = 8
    PING = 9
    PONG = 10
    CHALLENGE = 11
    PROOF = 12


class Role(IntEnum):
    """Who speaks, in HELLO."""

    VERIFIER = 1
    DRAFTER = 2


_VERIFIER: Final = frozenset({Role.VERIFIER})
_DRAFTER: Final = frozenset({Role.DRAFTER})
_BOTH: Final = _VERIFIER | _DRAFTER
SENDERS: Final[dict[MessageType, frozenset[Role]]] = {
    MessageType.HELLO: _BOTH,
    MessageType.STEP: _VERIFIER,
    MessageType.REPLY: _DRAFTER,
    MessageType.COMPLETE: _DRAFTER,
    MessageType.COMMIT: _VERIFIER,
    MessageType.RESET: _VERIFIER,
    MessageType.CANCEL: _VERIFIER,
    MessageType.ERROR: _BOTH,
    MessageType.PING: _BOTH,
    MessageType.PONG: _BOTH,
    MessageType.CHALLENGE: _BOTH,
    MessageType.PROOF: _BOTH,
}  # who may send what


HANDSHAKE_TYPES: Final = frozenset({MessageType.CHALLENGE, MessageType.PROOF})
"""What comes before HELLO where both sides hold a key, and never otherwise (P20)."""


class KeyPurpose(IntEnum):
    """What is made from a pre-shared key and two nonces; each is a function of its own (P21)."""

    VERIFIER_PROOF = 1
    DRAFTER_PROOF = 2
    VERIFIER_FRAMES = 3  # the MAC key of frames that the verifier sends
    DRAFTER_FRAMES = 4


class Layout(IntEnum):
    """How the q's of a reply are laid out. ``IDS_ONLY`` is the whole of v1 and never in v2."""

    IDS_ONLY = 0
    DENSE = 1
    SPARSE = 2


ENTRY_BYTES: Final = {Layout.IDS_ONLY: 0, Layout.DENSE: 4, Layout.SPARSE: 8}
"""Bytes of one entry of a q: there is one for each id of the shard, or for each of the support."""

WITH_SUPPORT: Final = frozenset({Layout.SPARSE})
"""Layouts with as many entries a row as the policy's ``support`` says."""


class LayoutSet(IntFlag):
    """Layouts offered or agreed in HELLO; bit n stands for the layout with number n."""

    IDS_ONLY = 1 << Layout.IDS_ONLY
    DENSE = 1 << Layout.DENSE
    SPARSE = 1 << Layout.SPARSE


V2_LAYOUTS: Final = LayoutSet.DENSE | LayoutSet.SPARSE
"""Every layout that carries q."""


class Adaptation(IntEnum):
    """Whether the draft checkpoint speaks the target's vocabulary natively or through an id map."""

    ANY = 0
    NATIVE = 1
    ADAPTED = 2


class Feature(IntFlag):
    """Extensions offered or agreed in HELLO; bits without a member are ignored (P33)."""

    MIRROR = 1 << 0  # STEP may hold processors of the target that the drafter applies, too
    STATES = 1 << 1  # STEP may hold hidden states of the target that the drafter reads
    EARLY_STOP = 1 << 3  # a drafter may admit fewer drafts than K, each before it is drawn
    FUSED = 1 << 4  # with STATES: the verifier applies the drafter's projection to them


NO_FEATURES: Final = Feature(0)


class ProcessorKind(IntEnum):
    """What a mirrored processor does to a row of logits (A30)."""

    REPETITION = 1
    OCCURRENCE = 2
    NO_REPEAT_NGRAM = 3
    BIAS = 4
    SUPPRESS = 5
    ALLOW = 6
    SEQUENCES = 7


class HiddenDtype(IntEnum):
    """Element type of target hidden-state rows in STEP; sizes 0, 2, 2 and 4 bytes."""

    NONE = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    FLOAT32 = 3


HIDDEN_ITEM_BYTES: Final = {
    HiddenDtype.NONE: 0,
    HiddenDtype.FLOAT16: 2,
    HiddenDtype.BFLOAT16: 2,
    HiddenDtype.FLOAT32: 4,
}

STATE_DTYPES: Final = frozenset({HiddenDtype.BFLOAT16, HiddenDtype.FLOAT32})
"""Element types of rows that have a meaning (P36)."""


class Outcome(IntEnum):
    """How the round that a commit speaks of ended."""

    NONE = 0  # there is no such round: the first STEP of a generation
    CORRECTION = 1
    BONUS = 2
    TARGET_ONLY = 3
    ENDED = 4  # the text ended inside the accepted drafts; no further token was drawn


class Status(IntEnum):
    """Explicit status of COMPLETE. Anything but OK means that no REPLY came before it."""

    OK = 0
    CONTEXT_LIMIT = 1
    NO_SLOT = 2
    SHUTTING_DOWN = 3
    REFUSED_ARITHMETIC = 4
    INTERNAL = 5


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a payload: its name, its type on the wire and its meaning (for SPEC).

    ``kind`` is ``u8 u16 u32 u64 i32 f32`` or ``bytesN`` / ``textN`` (ASCII, zero-padded to N).
    """

    name: str
    kind: str
    meaning: str


HELLO_FIELDS: Final = (
    Field("role", "u8", "1 verifier, 2 drafter"),
    Field("adaptation", "u8", "draft checkpoint: 0 any, 1 native, 2 adapted through an id map"),
    Field("layouts", "u16", "layouts offered (verifier) or agreed (drafter), a bit each"),
    Field("vocab_size", "u32", "the real vocabulary size V, without any padding of either model"),
    Field("max_sessions", "u16", "sessions this peer may hold open at once"),
    Field("max_slots", "u16", "proposals in flight at once"),
    Field("max_depth", "u16", "largest depth K"),
    Field("shard_count", "u16", "vocabulary shards a reply is split into"),
    Field("max_support", "u32", "largest support K of a sparse row"),
    Field("max_context", "u32", "tokens a committed prefix plus its proposal may hold"),
    Field("max_step_bytes", "u32", "largest STEP payload"),
    Field(
        "max_reply_bytes",
        "u32",
        "largest REPLY payload; follows from the layouts, V, depth, support",
    ),
    Field("hidden_rows", "u16", "most target hidden-state rows in a STEP; 0 = none"),
    Field("hidden_dtype", "u8", "element type of hidden-state rows"),
    Field("features", "u8", "extensions offered (verifier) or agreed (drafter), a bit each"),
    Field("hidden_width", "u32", "elements of one layer's state in a hidden-state row"),
    Field("q_semantic", "text32", "semantic id of q"),
    Field("verifier_semantic", "text32", "id of the verification rule"),
    Field("rng_abi", "text32", "id of the keyed generator"),
    Field("precision", "text16", "id of q's number format"),
    Field("id_map_hash", "bytes32", "SHA-256 of the global id map"),
    Field("tokenizer_hash", "bytes32", "SHA-256 of the tokenizer"),
    Field(
        "draft_identity", "bytes32", "SHA-256 of the draft checkpoint; from a verifier, zero = any"
    ),
    Field("target_identity", "bytes32", "SHA-256 of the target; from a drafter, zero = any"),
)

HELLO_STATES_FIELDS: Final = (
    Field("hidden_layers", "u16", "layers of the target that a row holds; then each, u16"),
    Field("projection", "bytes32", "SHA-256 of the projection of fused rows; only with FUSED"),
)
"""Behind the drafter's fixed fields where it has STATES (P36)."""

STEP_FIELDS: Final = (
    Field("session", "u64", "session id, chosen by the verifier, unique on its connection"),
    Field("slot", "u16", "slot that the reply will fill"),
    Field("layout", "u8", "layout of the reply"),
    Field("committed_outcome", "u8", "commit rider: how the round before ended"),
    Field("generation", "u32", "incarnation of the session, from 1"),
    Field("round", "u32", "round id inside the generation, from 1, rising"),
    Field("anchor", "u32", "absolute position of the last committed token"),
    Field("first_position", "u32", "absolute position of the first draft: anchor + 1"),
    Field("depth", "u16", "K, fixed before the first draw"),
    Field("committed_accepted", "u16", "commit rider: drafts accepted of the round before"),
    Field("committed_round", "u32", "commit rider: the round it speaks of; 0 = none"),
    Field("temperature", "f32", "draft temperature; 0 = greedy"),
    Field("top_k", "u32", "policy: A5; 0 = off"),
    Field("top_p", "u32", "policy: A6, whole tickets of 2^24; 2^24 = off"),
    Field("min_p", "u32", "policy: A7, whole tickets of 2^24; 0 = off"),
    Field("support", "u32", "policy: A8, K of the sparse layout; 0 for the others"),
    Field("context_version", "u32", "version of the target's processor, grammar and stop context"),
    Field("proposal_key", "u64", "KEY(PROPOSAL), lane 0 in its low half; or a link key; 0 in v1"),
    Field("prefix_digest", "bytes16", "BLAKE2b-128 of the whole committed prefix as int32 LE"),
    Field("base", "u32", "absolute position of the first token that follows here"),
    Field("token_count", "u32", "tokens that follow; base + token_count = anchor + 1"),
    Field("hidden_rows", "u16", "hidden-state rows that follow the tokens"),
    Field("processor_bytes", "u16", "bytes of processors behind the rows; 0 unless agreed"),
)  # then token_count x i32, then the hidden-state rows, then the processors

REPLY_FIELDS: Final = (
    Field("session", "u64", "as in STEP"),
    Field("slot", "u16", "as in STEP"),
    Field("layout", "u8", "as in STEP"),
    Field("reserved", "u8", "zero"),
    Field("generation", "u32", "as in STEP"),
    Field("round", "u32", "as in STEP"),
    Field("first_position", "u32", "as in STEP"),
    Field("prefix_digest", "bytes16", "as in STEP"),
    Field("context_version", "u32", "as in STEP"),
    Field("depth", "u16", "as in STEP"),
    Field("shard_index", "u16", "which vocabulary shard this reply holds"),
    Field("shard_count", "u16", "of how many"),
    Field("admitted", "u16", "drafts to be verified, fewer than K; 0 = all, or not agreed (P35)"),
    Field("shard_begin", "u32", "first global id of the shard"),
    Field("shard_end", "u32", "one past its last global id"),
    Field(
        "support", "u32", "entries laid out a position: V of the shard (dense), K (sparse), 0 (ids)"
    ),
)  # then depth rows: POSITION_FIELDS, then the q of the row at its fixed size

POSITION_FIELDS: Final = (
    Field("position", "u32", "absolute position of this draft: first_position + i"),
    Field("token", "i32", "the sampled global token id"),
    Field("entries", "u32", "entries in use: sparse, 1..K; dense, the shard's width; ids only, 0"),
    Field("checksum", "u32", "CRC32C of the q bytes of this row, pads included; 0 in v1"),
)

COMPLETE_FIELDS: Final = (
    Field("session", "u64", "as in STEP"),
    Field("slot", "u16", "as in STEP"),
    Field("status", "u8", "0 = the reply is whole; otherwise why there is none"),
    Field("reserved", "u8", "zero"),
    Field("generation", "u32", "as in STEP"),
    Field("round", "u32", "as in STEP"),
    Field("first_position", "u32", "as in STEP"),
    Field("prefix_digest", "bytes16", "as in STEP"),
    Field("context_version", "u32", "as in STEP"),
    Field("reply_bytes", "u32", "exact payload size of the REPLY; 0 unless status is OK"),
    Field("reply_checksum", "u32", "its payload CRC32C; 0 unless status is OK"),
)

COMMIT_FIELDS: Final = (
    Field("session", "u64", "as in STEP"),
    Field("generation", "u32", "as in STEP"),
    Field("round", "u32", "the round that ended"),
    Field("outcome", "u8", "how it ended"),
    Field("reserved", "u8", "zero"),
    Field("accepted", "u16", "drafts accepted"),
    Field("token", "i32", "the correction, bonus or target-only id; -1 when the text ended before"),
    Field("committed", "u32", "length of the committed prefix now"),
    Field("prefix_digest", "bytes16", "BLAKE2b-128 of that prefix"),
)

RESET_FIELDS: Final = (
    Field("session", "u64", "the session"),
    Field("generation", "u32", "the generation that ends"),
    Field("next_generation", "u32", "the one that begins: larger"),
)

CANCEL_FIELDS: Final = (
    Field("session", "u64", "the session"),
    Field("generation", "u32", "the generation that ends; another one is left alone"),
    Field("reserved", "u32", "zero"),
)

ERROR_FIELDS: Final = (
    Field("session", "u64", "the session concerned; 0 = the connection"),
    Field("generation", "u32", "as in STEP; 0 = none"),
    Field("round", "u32", "as in STEP; 0 = none"),
    Field("code", "u16", "why"),
    Field("reserved", "u16", "zero"),
    Field("field", "text32", "name of the field concerned, from these tables; empty = none"),
)

PROCESSOR_FIELDS: Final[dict[ProcessorKind, tuple[Field, ...]]] = {
    ProcessorKind.REPETITION: (
        Field("start", "u32", "first position whose id counts"),
        Field("penalty", "f32", "what a logit is multiplied with, or divided by"),
    ),
    ProcessorKind.OCCURRENCE: (
        Field("start", "u32", "first position whose id counts"),
        Field("presence", "f32", "what an id that occurs loses"),
        Field("frequency", "f32", "what an id loses for each time that it occurs"),
    ),
    ProcessorKind.NO_REPEAT_NGRAM: (
        Field("start", "u32", "first position whose id counts"),
        Field("size", "u32", "ids of an n-gram that may not occur twice"),
    ),
    ProcessorKind.BIAS: (),
    ProcessorKind.SUPPRESS: (
        Field("begin", "u32", "first position that the ids may not stand at"),
        Field("end", "u32", "one past the last"),
    ),
    ProcessorKind.ALLOW: (
        Field("begin", "u32", "first position that no other id may stand at"),
        Field("end", "u32", "one past the last"),
    ),
    ProcessorKind.SEQUENCES: (Field("start", "u32", "first position whose id counts"),),
}
"""Behind ``kind`` u16 and ``count`` u16; then the items of the kind (P34)."""

PROCESSOR_ITEMS: Final[dict[ProcessorKind, str]] = {
    ProcessorKind.REPETITION: "",
    ProcessorKind.OCCURRENCE: "",
    ProcessorKind.NO_REPEAT_NGRAM: "",
    ProcessorKind.BIAS: "`count` x id i32, then `count` x bias f32",
    ProcessorKind.SUPPRESS: "`count` x id i32",
    ProcessorKind.ALLOW: "`count` x id i32",
    ProcessorKind.SEQUENCES: "`count` x (bias f32, length u32), then the ids of each, i32",
}
"""What follows the fields of a processor, for SPEC; nothing where ``count`` is 0."""

PING_FIELDS: Final = (Field("nonce", "u64", "returned as it is by PONG"),)

CHALLENGE_FIELDS: Final = (
    Field("nonce", "bytes32", "random bytes of this connection and this side alone"),
)

PROOF_FIELDS: Final = (
    Field("proof", "bytes32", "made from the key and both nonces, for the sender's role"),
)

PAYLOAD_FIELDS: Final[dict[MessageType, tuple[Field, ...]]] = {
    MessageType.HELLO: HELLO_FIELDS,
    MessageType.STEP: STEP_FIELDS,
    MessageType.REPLY: REPLY_FIELDS,
    MessageType.COMPLETE: COMPLETE_FIELDS,
    MessageType.COMMIT: COMMIT_FIELDS,
    MessageType.RESET: RESET_FIELDS,
    MessageType.CANCEL: CANCEL_FIELDS,
    MessageType.ERROR: ERROR_FIELDS,
    MessageType.PING: PING_FIELDS,
    MessageType.PONG: PING_FIELDS,
    MessageType.CHALLENGE: CHALLENGE_FIELDS,
    MessageType.PROOF: PROOF_FIELDS,
}
