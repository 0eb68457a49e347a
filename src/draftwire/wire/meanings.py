"""What each message and each error code means, in words: the tables of SPEC are made from it."""

from __future__ import annotations

from typing import Final

from draftwire.errors import ProtocolErrorCode
from draftwire.wire.registry import MessageType

MESSAGE_MEANINGS: Final[dict[MessageType, str]] = {
    MessageType.HELLO: "what a peer is, offers and expects; the drafter's holds what is agreed",
    MessageType.STEP: "ask for one proposal; carries the commit of the round before",
    MessageType.REPLY: "all positions of one proposal, each token with its q",
    MessageType.COMPLETE: "ends a reply, or says why there is none",
    MessageType.COMMIT: "the outcome of a round that no STEP follows soon",
    MessageType.RESET: "a generation ends, a larger one begins from an empty prefix",
    MessageType.CANCEL: "a generation ends for good",
    MessageType.ERROR: "a constant-size refusal",
    MessageType.PING: "are you there?",
    MessageType.PONG: "I am",
    MessageType.CHALLENGE: "prove to me that you hold the key",
    MessageType.PROOF: "I hold it",
}

ERROR_MEANINGS: Final[dict[ProtocolErrorCode, str]] = {
    ProtocolErrorCode.BAD_MAGIC: "the stream does not begin a frame with `DWIR`",
    ProtocolErrorCode.BAD_VERSION: "a version unknown, not configured or not the agreed one",
    ProtocolErrorCode.BAD_TYPE: "an unknown message type",
    ProtocolErrorCode.BAD_FLAGS: "frame flags that are not zero",
    ProtocolErrorCode.BAD_HEADER_CHECKSUM: "a header that fails its CRC32C",
    ProtocolErrorCode.BAD_PAYLOAD_CHECKSUM: "a payload that fails its CRC32C, or COMPLETE's of it",
    ProtocolErrorCode.FRAME_TOO_LARGE: "a payload length over the bound of its type",
    ProtocolErrorCode.BAD_LENGTH: "a payload length that its type or its own fields rule out",
    ProtocolErrorCode.TRUNCATED: "the stream ended inside a frame",
    ProtocolErrorCode.BAD_FIELD: "a value without a meaning, or one that contradicts another field",
    ProtocolErrorCode.BAD_PADDING: "reserved or padding bytes that are not zero",
    ProtocolErrorCode.LIMIT_EXCEEDED: "a value over a limit of these tables or of HELLO",
    ProtocolErrorCode.HELLO_REFUSED: "the two HELLOs do not agree on the field named",
    ProtocolErrorCode.UNEXPECTED_MESSAGE: "a message that may not come now or from this peer",
    ProtocolErrorCode.WRONG_VERSION_FOR_LAYOUT: "q in v1, or ids alone in v2",
    ProtocolErrorCode.AUTHENTICATION_FAILED: "a key on one side only, another key, or a frame that"
    " fails its MAC",
    ProtocolErrorCode.DUPLICATE_ID: "a sparse id equal to the one before it",
    ProtocolErrorCode.UNSORTED_SUPPORT: "a sparse id smaller than the one before it",
    ProtocolErrorCode.ID_OUT_OF_RANGE: "an id outside [0, V)",
    ProtocolErrorCode.MISSING_Q: "a row with fewer entries than its layout asks for",
    ProtocolErrorCode.NON_FINITE_Q: "a q that is NaN or infinite",
    ProtocolErrorCode.NEGATIVE_Q: "a q below zero",
    ProtocolErrorCode.NON_DYADIC_Q: "a q that is no whole number of tickets",
    ProtocolErrorCode.WRONG_MASS: "counts of a row that do not sum to M",
    ProtocolErrorCode.ZERO_Q_AT_TOKEN: "a proposed token without a ticket",
    ProtocolErrorCode.ZERO_COUNT_ENTRY: "a sparse entry in use without a ticket",
    ProtocolErrorCode.NONZERO_PADDING: "a pad entry that is not id -1 with q +0.0",
    ProtocolErrorCode.BAD_Q_CHECKSUM: "a row whose q fails its CRC32C",
    ProtocolErrorCode.NEGATIVE_ZERO_Q: "a q that is -0.0",
    ProtocolErrorCode.WRONG_SESSION: "an answer for another session",
    ProtocolErrorCode.WRONG_SLOT: "an answer for another slot",
    ProtocolErrorCode.WRONG_GENERATION: "an answer for a generation that never was",
    ProtocolErrorCode.WRONG_ROUND: "an answer for a round that never was",
    ProtocolErrorCode.WRONG_POSITION: "a position that is not first_position + i of the STEP",
    ProtocolErrorCode.WRONG_DIGEST: "a digest that is not that of the prefix held",
    ProtocolErrorCode.WRONG_SIZE: "a size or a number of entries that was not asked for",
    ProtocolErrorCode.WRONG_SHARD: "a shard range that is not the agreed one",
    ProtocolErrorCode.DUPLICATE_ROUND: "a round asked twice with different bytes, or an old one",
    ProtocolErrorCode.STALE: "a message of a generation or round that is over; it is dropped",
    ProtocolErrorCode.AUDIT_FAILED: "a token that the key and its q do not give (A22)",
    ProtocolErrorCode.UNKNOWN_SESSION: "a session that is not open on this connection",
    ProtocolErrorCode.UNKNOWN_PREFIX: "the prefix that STEP builds on is not held any more",
    ProtocolErrorCode.COMMIT_MISMATCH: "a commit that contradicts the proposal it speaks of",
    ProtocolErrorCode.NO_SLOT: "more sessions or slots than HELLO agreed",
    ProtocolErrorCode.CONTEXT_LIMIT: "a prefix and proposal over the agreed context",
    ProtocolErrorCode.INTERNAL: "a failure of the peer itself",
    ProtocolErrorCode.SHUTTING_DOWN: "the peer is going away",
    ProtocolErrorCode.REFUSED_ARITHMETIC: "the peer's model gave a row that A1 to A11 refuse",
}
