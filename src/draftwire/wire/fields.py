"""Fixed field tables of the registry, packed and unpacked; what every payload begins with (P3)."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.registry import (
    HELLO_STATES_FIELDS,
    PAYLOAD_FIELDS,
    POSITION_FIELDS,
    Field,
    MessageType,
)

_FORMATS: Final = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "f32": "f"}
_SIZED: Final = re.compile(r"(bytes|text)(\d+)")
_TEXT: Final = re.compile(rb"[\x21-\x7e]*")  # printable ASCII without blanks
_MORE: Final = "__class__"  # asked for beside the fields, so that one field alone is a tuple, too


def _format_of(kind: str) -> str:
    sized = _SIZED.fullmatch(kind)
    return f"{sized[2]}s" if sized else _FORMATS[kind]


def _packed_format(field: Field) -> str:
    kind = _format_of(field.kind)
    return f"{struct.calcsize('<' + kind)}x" if field.name.startswith("reserved") else kind


class FieldTable:
    """One table of :class:`Field` as a fixed little-endian record without gaps.

    record: all fields, reserved ones too, as they lie in the payload. bytes: of the record.
    elsewhere: attributes of the message where fields lie that are not named like one.
    """

    def __init__(
        self, fields: Sequence[Field], elsewhere: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.record = struct.Struct("<" + "".join(_format_of(field.kind) for field in fields))
        self.bytes = self.record.size
        self._fields = tuple(fields)
        self._names = tuple(field.name for field in fields)
        used = [field for field in fields if not field.name.startswith("reserved")]
        self._reserved = tuple(name for name in self._names if name.startswith("reserved"))
        self._texts = tuple(field.name for field in fields if field.kind.startswith("text"))
        self._values = attrgetter(*(elsewhere.get(each.name, each.name) for each in used), _MORE)
        self._sized = tuple(
            (at, field.name, sized[1], int(sized[2]))
            for at, field in enumerate(used)
            if (sized := _SIZED.fullmatch(field.kind))
        )
        # The same record with its reserved fields as padding, which struct fills with zeros.
        self._packer = struct.Struct("<" + "".join(map(_packed_format, fields)))

    def offset(self, name: str) -> int:
        """Return where in the record a field begins; ValueError if there is none."""
        before = self._fields[: self._names.index(name)]
        return struct.calcsize("<" + "".join(_format_of(field.kind) for field in before))

    def pack(self, message: object) -> bytes:
        """Return a message's record, reserved fields zero; ValueError if a value does not fit."""
        *row, _ = self._values(message)
        for at, name, kind, size in self._sized:
            value = row[at]
            if kind == "text" or type(value) is not bytes or len(value) != size:
                row[at] = _sized_bytes(name, kind, size, value)
        try:
            return self._packer.pack(*row)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"a field is outside its type: {error}") from error

    def unpack(self, payload: memoryview, unused: str = "") -> dict[str, Any]:
        """Return the fields by name from the front of ``payload``, which is long enough.

        unused: a field that is reserved on this connection.
        """
        found = self.record.unpack_from(payload)
        values: dict[str, Any] = dict(zip(self._names, found, strict=True))
        for name in (*self._reserved, unused) if unused else self._reserved:
            if values[name]:
                raise ProtocolError(
                    ProtocolErrorCode.BAD_PADDING, f"{name} is not zero", field=name
                )
        for name in self._reserved:
            del values[name]
        for name in self._texts:
            values[name] = _text(name, values[name])
        return values


def _sized_bytes(name: str, kind: str, size: int, value: Any) -> bytes:
    """Return ``value`` for struct, which would pad or cut bytes of a wrong length in silence."""
    if kind == "bytes":
        if len(value) != size:
            raise ValueError(f"{name} is {len(value)} bytes, not {size}")
        return bytes(value)
    raw: bytes = value.encode("ascii")
    if len(raw) > size or not _TEXT.fullmatch(raw):
        raise ValueError(f"{name} is not at most {size} printable ASCII characters")
    return raw


def _text(name: str, raw: bytes) -> str:
    text, _, padding = raw.partition(b"\0")
    if padding.strip(b"\0"):
        raise ProtocolError(
            ProtocolErrorCode.BAD_PADDING, f"{name} is not padded with zeros", field=name
        )
    if not _TEXT.fullmatch(text):
        raise ProtocolError(
            ProtocolErrorCode.BAD_FIELD, f"{name} is not printable ASCII", field=name
        )
    return text.decode("ascii")


_ELSEWHERE: Final = {
    "layout": "policy.layout",
    "depth": "policy.depth",
    "temperature": "policy.temperature",
    "top_k": "policy.top_k",
    "top_p": "policy.top_p",
    "min_p": "policy.min_p",
    "support": "policy.support",
    "processor_bytes": "policy.processor_bytes",
    "committed_outcome": "commit.outcome",
    "committed_accepted": "commit.accepted",
    "committed_round": "commit.round",
}
"""Where in a :class:`~draftwire.wire.messages.Step` its grouped fields are."""

PAYLOAD_TABLES: Final = {
    kind: FieldTable(fields, _ELSEWHERE if kind is MessageType.STEP else {})
    for kind, fields in PAYLOAD_FIELDS.items()
}
POSITION_TABLE: Final = FieldTable(POSITION_FIELDS)

FIELD_NAMES: Final = frozenset(
    field.name
    for table in (*PAYLOAD_FIELDS.values(), POSITION_FIELDS, HELLO_STATES_FIELDS)
    for field in table
)
"""Every name that the ``field`` of an ERROR may hold."""
