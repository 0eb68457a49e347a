"""Fixed field tables of the registry, packed and unpacked; what every payload begins with (P3)."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.registry import PAYLOAD_FIELDS, POSITION_FIELDS, Field

_FORMATS: Final = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "f32": "f"}
_SIZED: Final = re.compile(r"(bytes|text)(\d+)")
_TEXT: Final = re.compile(rb"[\x21-\x7e]*")  # printable ASCII without blanks


def _format_of(kind: str) -> str:
    sized = _SIZED.fullmatch(kind)
    return f"{sized[2]}s" if sized else _FORMATS[kind]


class FieldTable:
    """One table of :class:`Field` as a fixed little-endian record without gaps."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._struct = struct.Struct("<" + "".join(_format_of(field.kind) for field in fields))
        self._names = tuple(field.name for field in fields)
        self.names = tuple(name for name in self._names if not name.startswith("reserved"))
        self._texts = tuple(field.name for field in fields if field.kind.startswith("text"))
        self._reserved = tuple(name for name in self._names if name.startswith("reserved"))
        self._sources = tuple(None if name.startswith("reserved") else name for name in self._names)
        self._sized = tuple(
            (at, field.name, sized[1], int(sized[2]))
            for at, field in enumerate(fields)
            if (sized := _SIZED.fullmatch(field.kind))
        )
        self.bytes = self._struct.size

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """Return the record, reserved fields zero; raises ValueError if a value does not fit."""
        row: list[Any] = [0 if name is None else values[name] for name in self._sources]
        for at, name, kind, size in self._sized:
            row[at] = _sized_bytes(name, kind, size, row[at])
        try:
            return self._struct.pack(*row)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"a field is outside its type: {error}") from error

    def unpack(self, payload: memoryview) -> dict[str, Any]:
        """Return the fields by name from the front of ``payload``, which is long enough."""
        values: dict[str, Any] = dict(
            zip(self._names, self._struct.unpack_from(payload), strict=True)
        )
        for name in self._reserved:
            if values.pop(name):
                raise ProtocolError(
                    ProtocolErrorCode.BAD_PADDING, f"{name} is not zero", field=name
                )
        for name in self._texts:
            values[name] = _text(name, values[name])
        return values

    def pack_row(self, *values: int) -> bytes:
        """Return the record of a table of plain numbers, in the order of its fields."""
        try:
            return self._struct.pack(*values)
        except struct.error as error:
            raise ValueError(f"a field is outside its type: {error}") from error

    def unpack_row(self, payload: memoryview, offset: int) -> tuple[Any, ...]:
        """Return the fields of a table of plain numbers in their order, read at ``offset``."""
        return self._struct.unpack_from(payload, offset)


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


PAYLOAD_TABLES: Final = {kind: FieldTable(fields) for kind, fields in PAYLOAD_FIELDS.items()}
POSITION_TABLE: Final = FieldTable(POSITION_FIELDS)

FIELD_NAMES: Final = frozenset(
    field.name for table in (*PAYLOAD_FIELDS.values(), POSITION_FIELDS) for field in table
)
"""Every name that the ``field`` of an ERROR may hold."""
