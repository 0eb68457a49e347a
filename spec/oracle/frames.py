"""Frames and payload fields, rules P1 to P3 of spec/protocol.md, from tables of their own.

A payload is a dict of its fields by name. Reading checks everything that the bytes of one frame can
show; what needs the sessions' state (rounds, digests, commits) is not known here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

MAGIC = b"DWIR"
TOTAL = 1 << 24
HEADER_BYTES = 16
TRAILER_BYTES = 4

Value = int | float | bytes | str
Fields = dict[str, Value]


class Refused(Exception):
    """These bytes are not canonical; ``code`` names the error code that refuses them."""

    def __init__(self, code: str, field: str = "") -> None:
        super().__init__(f"{code} {field}".strip())
        self.code = code
        self.field = field


# Checksums ---------------------------------------------------------------------------------------


def crc_table() -> list[int]:
    """Remainders of all bytes by the reflected Castagnoli polynomial 0x1EDC6F41."""
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
        table.append(remainder)
    return table


CRC_TABLE = crc_table()


def crc32c(data: bytes) -> int:
    """P1: CRC32C as in RFC 3720 (reflected, initial and final value all ones)."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = remainder >> 8 ^ CRC_TABLE[(remainder ^ byte) & 0xFF]
    return remainder ^ 0xFFFFFFFF


# Tables ------------------------------------------------------------------------------------------

TYPES = {
    1: "HELLO",
    2: "STEP",
    3: "REPLY",
    4: "COMPLETE",
    5: "COMMIT",
    6: "RESET",
    7: "CANCEL",
    8: "ERROR",
    9: "PING",
    10: "PONG",
    11: "CHALLENGE",
    12: "PROOF",
}
TYPE_NUMBERS = {name: number for number, name in TYPES.items()}

LAYOUTS = {"IDS_ONLY": 0, "DENSE": 1, "SPARSE": 2}
HIDDEN_ITEM_BYTES = {0: 0, 1: 2, 2: 2, 3: 4}

# Field names and their kinds, in the order of the payload. A kind is u8 u16 u32 u64 i32 f32, or
# bytesN, or textN (printable ASCII without blanks, zero-padded), or zeroN (N reserved zero bytes).
TABLES: dict[str, str] = {
    "HELLO": """
        role:u8 adaptation:u8 layouts:u16 vocab_size:u32 max_sessions:u16 max_slots:u16
        max_depth:u16 shard_count:u16 max_support:u32 max_context:u32 max_step_bytes:u32
        max_reply_bytes:u32 hidden_rows:u16 hidden_dtype:u8 features:u8 hidden_width:u32
        q_semantic:text32 verifier_semantic:text32 rng_abi:text32 precision:text16
        id_map_hash:bytes32 tokenizer_hash:bytes32 draft_identity:bytes32 target_identity:bytes32
    """,
    "STATES": "hidden_layers:u16 projection:bytes32",
    "STEP": """
        session:u64 slot:u16 layout:u8 committed_outcome:u8 generation:u32 round:u32 anchor:u32
        first_position:u32 depth:u16 committed_accepted:u16 committed_round:u32 temperature:f32
        top_k:u32 top_p:u32 min_p:u32 support:u32 context_version:u32 proposal_key:u64
        prefix_digest:bytes16 base:u32 token_count:u32 hidden_rows:u16 processor_bytes:u16
    """,
    "REPLY": """
        session:u64 slot:u16 layout:u8 reserved:zero1 generation:u32 round:u32 first_position:u32
        prefix_digest:bytes16 context_version:u32 depth:u16 shard_index:u16 shard_count:u16
        admitted:u16 shard_begin:u32 shard_end:u32 support:u32
    """,
    "POSITION": "position:u32 token:i32 entries:u32 checksum:u32",
    "COMPLETE": """
        session:u64 slot:u16 status:u8 reserved:zero1 generation:u32 round:u32 first_position:u32
        prefix_digest:bytes16 context_version:u32 reply_bytes:u32 reply_checksum:u32
    """,
    "COMMIT": """
        session:u64 generation:u32 round:u32 outcome:u8 reserved:zero1 accepted:u16 token:i32
        committed:u32 prefix_digest:bytes16
    """,
    "RESET": "session:u64 generation:u32 next_generation:u32",
    "CANCEL": "session:u64 generation:u32 reserved:zero4",
    "ERROR": "session:u64 generation:u32 round:u32 code:u16 reserved:zero2 field:text32",
    "PING": "nonce:u64",
    "PONG": "nonce:u64",
    "CHALLENGE": "nonce:bytes32",
    "PROOF": "proof:bytes32",
}
INTEGERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i32": "<i"}


def table(name: str) -> list[tuple[str, str]]:
    """(field, kind) pairs of a payload."""
    return [(field, kind) for field, kind in (item.split(":") for item in TABLES[name].split())]


def kind_bytes(kind: str) -> int:
    """Size of a field of this kind."""
    if kind in INTEGERS:
        return struct.calcsize(INTEGERS[kind])
    return 4 if kind == "f32" else int(kind.lstrip("bytesxzro"))


def table_bytes(name: str) -> int:
    """Size of the fixed part of a payload."""
    return sum(kind_bytes(kind) for _, kind in table(name))


# Fields ------------------------------------------------------------------------------------------


def write_field(kind: str, value: Value) -> bytes:
    """The bytes of one field; integers, binary32 and text in their one encoding."""
    if kind in INTEGERS:
        return struct.pack(INTEGERS[kind], value)
    if kind == "f32":
        return struct.pack("<f", value)
    size = kind_bytes(kind)
    if isinstance(value, str):
        value = value.encode("ascii")
    if kind.startswith("zero"):
        return bytes(size)
    assert isinstance(value, bytes)
    return value.ljust(size, b"\0")


def read_field(name: str, kind: str, data: bytes) -> Value:
    """The value of one field, or a refusal where its bytes are not the one encoding of it (P3)."""
    if kind in INTEGERS:
        return int(struct.unpack(INTEGERS[kind], data)[0])
    if kind == "f32":
        return float(struct.unpack("<f", data)[0])
    if kind.startswith("zero"):
        if any(data):
            raise Refused("BAD_PADDING", name)
        return 0
    if kind.startswith("bytes"):
        return data
    text, _, padding = data.partition(b"\0")
    if any(padding):
        raise Refused("BAD_PADDING", name)
    if any(not 0x21 <= byte <= 0x7E for byte in text):
        raise Refused("BAD_FIELD", name)
    return text.decode("ascii")


def write_fields(name: str, fields: Mapping[str, Value]) -> bytes:
    """The fixed part of a payload; reserved fields need not be given."""
    return b"".join(write_field(kind, fields.get(field, 0)) for field, kind in table(name))


def read_fields(name: str, payload: bytes, unused: str = "") -> tuple[Fields, bytes]:
    """The fields of the fixed part of a payload, and the bytes after it.

    unused: a field that is reserved on this connection, since its feature is not agreed (P33).
    """
    if len(payload) < table_bytes(name):
        raise Refused("BAD_LENGTH")
    fields: Fields = {}
    at = 0
    for field, kind in table(name):
        size = kind_bytes(kind)
        fields[field] = read_field(field, kind, payload[at : at + size])
        if field == unused and fields[field]:
            raise Refused("BAD_PADDING", field)
        at += size
    return fields, payload[at:]


# Frames ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """A whole frame whose header and checksums are right."""

    version: int
    type: str
    payload: bytes


def write_frame(version: int, type_number: int, payload: bytes, flags: int = 0) -> bytes:
    """P1: header, payload, checksum."""
    head = MAGIC + struct.pack("<BBHI", version, type_number, flags, len(payload))
    return head + struct.pack("<I", crc32c(head)) + payload + struct.pack("<I", crc32c(payload))


def read_header(head: bytes, version: int, bounds: Mapping[str, int]) -> tuple[str, int]:
    """P2: type and payload length of a header, checked in the order of the rule."""
    if head[:4] != MAGIC:
        raise Refused("BAD_MAGIC")
    if head[12:16] != struct.pack("<I", crc32c(head[:12])):
        raise Refused("BAD_HEADER_CHECKSUM")
    its_version, number, flags, length = struct.unpack("<BBHI", head[4:12])
    if its_version != version:
        raise Refused("BAD_VERSION")
    if number not in TYPES:
        raise Refused("BAD_TYPE")
    if flags:
        raise Refused("BAD_FLAGS")
    if TYPES[number] not in bounds:
        key = {"CHALLENGE": "nonce", "PROOF": "proof"}
        for due, field in key.items():
            if due in bounds:
                raise Refused("AUTHENTICATION_FAILED", field)
        raise Refused("AUTHENTICATION_FAILED" if TYPES[number] in key else "UNEXPECTED_MESSAGE")
    if length > bounds[TYPES[number]]:
        raise Refused("FRAME_TOO_LARGE")
    if length < table_bytes(TYPES[number]):
        raise Refused("BAD_LENGTH")
    return TYPES[number], length


def read_frames(
    stream: bytes,
    version: int,
    bounds: Mapping[str, int],
    mac_of: Callable[[int, bytes], bytes] | None = None,
) -> Iterator[Frame]:
    """The frames of a stream that has ended; ``bounds`` is the largest payload of each type.

    mac_of: what stands behind frame n of its direction, where there is a key (P22).
    """
    at = number = 0
    while at < len(stream):
        head = stream[at : at + HEADER_BYTES]
        if head[:4] != MAGIC[: len(head)]:
            raise Refused("BAD_MAGIC")
        if len(head) < HEADER_BYTES:
            raise Refused("TRUNCATED")
        name, length = read_header(head, version, bounds)
        end = at + HEADER_BYTES + length + TRAILER_BYTES
        following = end
        if mac_of is not None:
            due = mac_of(number, stream[at:end])
            following = end + len(due)
        if following > len(stream):
            raise Refused("TRUNCATED")
        if mac_of is not None and stream[end:following] != due:
            raise Refused("AUTHENTICATION_FAILED")
        payload = stream[at + HEADER_BYTES : end - TRAILER_BYTES]
        if stream[end - TRAILER_BYTES : end] != struct.pack("<I", crc32c(payload)):
            raise Refused("BAD_PAYLOAD_CHECKSUM")
        yield Frame(version, name, payload)
        at = following
        number += 1
