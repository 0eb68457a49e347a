"""Frames as raw bytes: cut from a stream, damaged field by field, their checksums made right again.

What a faulty network does leaves the checksums wrong; what a faulty peer does leaves them right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from draftwire.wire.checksum import crc32c
from draftwire.wire.registry import (
    FRAME_MAC_BYTES,
    HEADER_BYTES,
    PAYLOAD_FIELDS,
    POSITION_FIELDS,
    TRAILER_BYTES,
    Field,
    Layout,
    MessageType,
)

_NUMBERS: Final = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i32": 4, "f32": 4}
_HEADER: Final = (
    ("magic", 0, 4),
    ("version", 4, 1),
    ("type", 5, 1),
    ("flags", 6, 2),
    ("length", 8, 4),
    ("header checksum", 12, 4),
)
HEADER_NAMES: Final = frozenset(name for name, _, _ in _HEADER)
TRAILER_NAME: Final = "payload checksum"


@dataclass(frozen=True)
class Part:
    """A field of one frame: where it lies in the frame's bytes."""

    name: str
    begin: int
    size: int


def kind_of(frame: bytes) -> MessageType:
    """Return the type of a frame."""
    return MessageType(frame[5])


def size_of(stream: bytes, *, sealed: bool) -> int:
    """Return the bytes of the frame that a stream begins with; sealed: with a MAC behind it."""
    payload = int.from_bytes(stream[8:12], "little")
    return HEADER_BYTES + payload + TRAILER_BYTES + (FRAME_MAC_BYTES if sealed else 0)


def parts_of(frame: bytes) -> list[Part]:
    """Return every field of a frame in order: header, payload, rows and tokens, trailer."""
    kind, end = kind_of(frame), len(frame) - TRAILER_BYTES
    parts = [Part(*each) for each in _HEADER]
    parts += _table(PAYLOAD_FIELDS[kind], HEADER_BYTES)
    at = parts[-1].begin + parts[-1].size
    if kind is MessageType.REPLY:
        for index, row in enumerate(_rows(frame, at)):
            parts += [Part(f"row {index} {p.name}", p.begin, p.size) for p in row]
    elif at < end:
        parts.append(Part("tokens", at, end - at))
    return [*parts, Part(TRAILER_NAME, end, TRAILER_BYTES)]


def part(frame: bytes, name: str) -> Part:
    """Return one field; KeyError if the frame has none of that name."""
    for each in parts_of(frame):
        if each.name == name:
            return each
    raise KeyError(name)


def value(frame: bytes, name: str) -> int:
    """Return a number of a frame."""
    place = part(frame, name)
    return int.from_bytes(frame[place.begin : place.begin + place.size], "little")


def flipped(frame: bytes, name: str) -> bytes:
    """Return the frame with the lowest bit of a field flipped and nothing else changed."""
    damaged = bytearray(frame)
    damaged[part(frame, name).begin] ^= 1
    return bytes(damaged)


def changed(frame: bytes, values: Mapping[str, int]) -> bytes:
    """Return the frame with other numbers in some fields, and every checksum right."""
    made = bytearray(frame)
    for name, number in values.items():
        place = part(frame, name)
        made[place.begin : place.begin + place.size] = number.to_bytes(place.size, "little")
    return repaired(bytes(made))


def repaired(frame: bytes) -> bytes:
    """Return the frame with the checksums of its header, its rows' q's and its payload right."""
    made = bytearray(frame)
    if kind_of(frame) is MessageType.REPLY:
        at = HEADER_BYTES + sum(_size(field) for field in PAYLOAD_FIELDS[MessageType.REPLY])
        for row in _rows(frame, at):
            checksum, q = row[3], row[4:]
            if q:
                right = crc32c(bytes(made[q[0].begin : q[-1].begin + q[-1].size]))
                made[checksum.begin : checksum.begin + 4] = right.to_bytes(4, "little")
    return _sealed(made)


def sums_repaired(frame: bytes) -> bytes:
    """As ``repaired``, but a row's own checksum stays as it is: it is what was damaged."""
    return _sealed(bytearray(frame))


def _sealed(made: bytearray) -> bytes:
    made[12:16] = crc32c(bytes(made[:12])).to_bytes(4, "little")
    end = len(made) - TRAILER_BYTES
    made[end:] = crc32c(bytes(made[HEADER_BYTES:end])).to_bytes(4, "little")
    return bytes(made)


def _rows(frame: bytes, at: int) -> Iterator[list[Part]]:
    """The fields of each row; its q last, in a sparse row behind the ids."""
    depth = int.from_bytes(frame[HEADER_BYTES + 44 : HEADER_BYTES + 46], "little")
    sparse = frame[HEADER_BYTES + 10] == Layout.SPARSE
    each = (len(frame) - TRAILER_BYTES - at) // depth
    for index in range(depth):
        fields = _table(POSITION_FIELDS, at + index * each)
        begin = fields[-1].begin + fields[-1].size
        size = at + (index + 1) * each - begin
        if sparse:
            fields += [Part("ids", begin, size // 2)]
            begin, size = begin + size // 2, size // 2
        yield [*fields, *([Part("q", begin, size)] if size else [])]


def _table(fields: tuple[Field, ...], at: int) -> list[Part]:
    parts = []
    for field in fields:
        parts.append(Part(field.name, at, _size(field)))
        at += _size(field)
    return parts


def _size(field: Field) -> int:
    sized = re.fullmatch(r"(?:bytes|text)(\d+)", field.kind)
    return int(sized[1]) if sized else _NUMBERS[field.kind]
