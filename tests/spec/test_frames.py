"""The oracle's tables are those of the registry, stated twice; its reader takes what it writes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire import registry
from draftwire.wire.agreement import bounds
from draftwire.wire.codec import decode
from draftwire.wire.frames import FrameReader
from draftwire.wire.registry import MessageType, WireVersion
from spec.generators.vectors.frames import LIMITS_V2, STEP, frame, rows
from spec.generators.vectors.frames import REPLY as REPLY_FIELDS
from spec.oracle import frames, messages

ORACLE = Path(frames.__file__).parent


def test_crc32c_known_answers() -> None:
    # RFC 3720, B.4
    assert frames.crc32c(bytes(32)) == 0x8A9136AA
    assert frames.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert frames.crc32c(bytes(range(32))) == 0x46DD794E
    assert frames.crc32c(b"123456789") == 0xE3069283


def kind_of(field: registry.Field) -> str:
    if field.name.startswith("reserved"):
        return "zero" + str(frames.kind_bytes(field.kind))
    return field.kind


@pytest.mark.parametrize("kind", MessageType)
def test_tables_are_the_registrys(kind: MessageType) -> None:
    stated = [(field.name, kind_of(field)) for field in registry.PAYLOAD_FIELDS[kind]]
    assert frames.table(kind.name) == stated
    assert frames.TYPES[kind] == kind.name


def test_other_tables_are_the_registrys() -> None:
    stated = [(field.name, kind_of(field)) for field in registry.POSITION_FIELDS]
    assert frames.table("POSITION") == stated
    assert {layout.name: int(layout) for layout in registry.Layout} == frames.LAYOUTS
    assert {o.name: int(o) for o in registry.Outcome} == messages.OUTCOMES
    assert set(messages.STATUSES) == set(registry.Status)
    assert set(ProtocolErrorCode) == messages.ERROR_CODES
    assert {int(k): v for k, v in registry.HIDDEN_ITEM_BYTES.items()} == frames.HIDDEN_ITEM_BYTES
    assert frames.MAGIC == registry.MAGIC
    assert frames.TOTAL == registry.TOTAL


def test_it_imports_nothing_of_ours() -> None:
    standard = {"__future__", "collections", "dataclasses", "fractions", "hashlib", "itertools"}
    standard |= {"math", "struct", "typing"}
    for path in ORACLE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").removeprefix("spec.").split(".")[0]}
            else:
                continue
            assert names <= standard | {"oracle"}, path


GOOD = [
    frame("STEP", messages.write_step(STEP, [4, 0, 5])),
    frame("REPLY", messages.write_reply(REPLY_FIELDS, rows())),
    frame("PING", (5).to_bytes(8, "little")),
]


def ours(data: bytes) -> tuple[list[str], str]:
    """Types of the messages the oracle reads, and its refusal."""
    seen: list[str] = []
    try:
        for one in frames.read_frames(data, 2, messages.bounds(LIMITS_V2)):
            messages.read_message(one, LIMITS_V2)
            seen.append(one.type)
    except frames.Refused as refusal:
        return seen, refusal.code
    return seen, ""


def theirs(data: bytes) -> tuple[list[str], str]:
    """The same, of the wire."""
    from draftwire.conformance.wire import agreed_of

    agreed = agreed_of({name: LIMITS_V2[name] for name in LIMITS_V2})
    reader = FrameReader(bounds(agreed, versions=frozenset({WireVersion.V2})))
    seen: list[str] = []
    try:
        for one in reader.feed(data):
            decode(one.type, one.version, one.payload, agreed)
            seen.append(one.type.name)
        reader.finish()
    except ProtocolError as error:
        return seen, error.code.name
    return seen, ""


def with_checksums(data: bytearray, count: int) -> bytes:
    """The stream with every checksum made right, so that changes reach the fields."""
    at = 0
    for _ in range(count):
        length = int.from_bytes(data[at + 8 : at + 12], "little")
        data[at + 12 : at + 16] = frames.crc32c(bytes(data[at : at + 12])).to_bytes(4, "little")
        end = at + 16 + length
        payload = bytes(data[at + 16 : end])
        data[end : end + 4] = frames.crc32c(payload).to_bytes(4, "little")
        at = end + 4
    return bytes(data)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mutated_streams_are_read_or_refused_alike(data: st.DataObject) -> None:
    """Both readers say the same of any bytes: the messages, then the code."""
    whole = bytearray(b"".join(GOOD))
    changes = data.draw(st.integers(0, 2))
    for _ in range(changes):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    stream = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    assert ours(stream) == theirs(stream)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(GOOD), st.data())
def test_one_changed_field_is_refused_alike(good: bytes, data: st.DataObject) -> None:
    whole = bytearray(good)
    whole[data.draw(st.integers(16, len(good) - 5))] = data.draw(st.integers(0, 255))
    stream = with_checksums(whole, 1)
    assert ours(stream) == theirs(stream)
