"""Checks of frames, messages, q rows and HELLO (P1 to P8, P12, P14)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from draftwire.conformance.vectors import Vector, expect
from draftwire.errors import ProtocolError
from draftwire.exact import payload as exact_payload
from draftwire.rows.reply import decode_rows
from draftwire.wire import registry
from draftwire.wire.agreement import Agreed, agree, answer, bounds
from draftwire.wire.codec import decode, encode
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.frames import Frame, FrameReader
from draftwire.wire.messages import Hello, Reply, Step
from draftwire.wire.registry import (
    PAYLOAD_FIELDS,
    Adaptation,
    Feature,
    HiddenDtype,
    LayoutSet,
    MessageType,
    Role,
    WireVersion,
)

NUMBERS: Final = (
    "layouts",
    "vocab_size",
    "max_sessions",
    "max_slots",
    "max_depth",
    "shard_count",
    "max_support",
    "max_context",
    "max_step_bytes",
    "max_reply_bytes",
    "hidden_rows",
    "hidden_dtype",
    "hidden_width",
    "adaptation",
    "features",
)
ONCE_RESERVED: Final = ("features", "processor_bytes", "admitted")
"""Fields that vectors leave out where they are zero (C12)."""


def agreed_of(limits: Vector | None) -> Agreed | None:
    """The agreement of a vector; identities do not matter to what it checks."""
    if limits is None:
        return None
    numbers = {name: limits[name] for name in NUMBERS if name not in ONCE_RESERVED}
    numbers["features"] = Feature(limits.get("features", 0))
    numbers["layouts"] = LayoutSet(numbers["layouts"])
    numbers["hidden_dtype"] = HiddenDtype(numbers["hidden_dtype"])
    numbers["adaptation"] = Adaptation(numbers["adaptation"])
    return Agreed(
        **numbers,
        hidden_layers=tuple(limits.get("hidden_layers", ())),
        q_semantic=registry.Q_SEMANTIC,
        verifier_semantic=registry.VERIFIER_SEMANTIC,
        rng_abi=registry.RNG_ABI,
        precision=registry.PRECISION,
        id_map_hash=bytes(32),
        tokenizer_hash=bytes(32),
        draft_identity=bytes(32),
        target_identity=bytes(32),
    )


# A stream of frames ------------------------------------------------------------------------------


def check_stream(vector: Vector) -> None:
    """The messages of a stream and its refusal, fed whole and byte by byte."""
    data = bytes.fromhex(vector["bytes"])
    expected = {"messages": vector["messages"], "refused": vector.get("refused")}
    expect("fed whole", read_stream(vector, [data]), expected)
    pieces = [data[i : i + 1] for i in range(len(data))]
    expect("fed byte by byte", read_stream(vector, pieces), expected)


def read_stream(vector: Vector, pieces: list[bytes]) -> dict[str, Any]:
    """What this implementation makes of a stream that comes in pieces and then ends."""
    version, agreed = WireVersion(vector["version"]), agreed_of(vector["limits"])
    reader = FrameReader(bounds(agreed, versions=frozenset({version})))
    found: list[Vector] = []
    refused = None
    try:
        for piece in pieces:
            for frame in reader.feed(piece):
                found.append(read_frame(frame, agreed))
        reader.finish()
    except ProtocolError as error:
        refused = error.code.name
    return {"messages": found, "refused": refused}


def read_frame(frame: Frame, agreed: Agreed | None) -> Vector:
    """A message in the form of the vectors; it must encode to the bytes it came from."""
    message = decode(frame.type, frame.version, frame.payload, agreed)
    again = b"".join(encode(message))
    expect(f"{frame.type.name} encoded again", again.hex(), bytes(frame.payload).hex())
    fields = dict(shown_fields(frame.type, frame.payload))
    result: Vector = {"type": frame.type.name, "fields": fields}
    if isinstance(message, Hello) and message.hidden_layers:
        fields["hidden_layers"] = list(message.hidden_layers)
        if message.projection:
            fields["projection"] = message.projection.hex()
    if isinstance(message, Step):
        fields |= {"tokens": list(message.tokens), "hidden": bytes(message.hidden).hex()}
        if message.policy.processors:
            fields["processors"] = message.policy.processors.hex()
    if isinstance(message, Reply):
        heads = ("position", "token", "entries", "checksum")
        fields["rows"] = [
            {**{name: getattr(row, name) for name in heads}, "q": bytes(row.q).hex()}
            for row in message.rows
        ]
        result |= judged(message, agreed.vocab_size if agreed else 0)
    return result


def shown_fields(kind: MessageType, payload: memoryview) -> Iterator[tuple[str, Any]]:
    """The fixed fields: u64 as decimal text, bytes and binary32 as hexadecimal digits."""
    values = PAYLOAD_TABLES[kind].unpack(payload)
    for field in PAYLOAD_FIELDS[kind]:
        if field.name.startswith("reserved"):
            continue
        value = values[field.name]
        if field.name in ONCE_RESERVED and not value:
            continue
        if field.kind == "u64":
            value = str(value)
        elif field.kind == "f32":
            value = struct.pack("<f", value).hex()
        elif isinstance(value, bytes):
            value = value.hex()
        yield field.name, value


def judged(reply: Reply, vocab_size: int) -> Vector:
    """The counts of a reply or the code it is dropped with; both decoders must say the same."""
    verdicts: list[Vector] = []
    for decoder in (exact_counts, compiled_counts):
        try:
            verdicts.append({"counts": decoder(reply, vocab_size)})
        except ProtocolError as error:
            verdicts.append({"dropped": error.code.name})
    expect("compiled q rows against the plain ones", verdicts[1], verdicts[0])
    return verdicts[0]


def exact_counts(reply: Reply, vocab_size: int) -> list[list[int]]:
    """Whole rows of counts by the plain-integer decoder."""
    return [row.dense() for row in exact_payload.decode_reply_rows(reply, vocab_size)]


def compiled_counts(reply: Reply, vocab_size: int) -> list[list[int]]:
    """Whole rows of counts by the compiled decoder."""
    return [row.exact().dense() for row in decode_rows(reply, vocab_size)]


# HELLO -------------------------------------------------------------------------------------------


def hello_of(digits: str, version: int) -> Hello:
    """A HELLO from its payload."""
    payload = memoryview(bytes.fromhex(digits))
    message = decode(MessageType.HELLO, WireVersion(version), payload, None)
    if not isinstance(message, Hello):
        raise TypeError("the payload of a HELLO gave another message")
    return message


def check_hello(vector: Vector) -> None:
    """What a drafter agrees to, and that its answer leads the verifier to the same."""
    verifier = hello_of(vector["verifier"], vector["version"])
    drafter = hello_of(vector["drafter"], vector["version"])
    try:
        agreed = agree(drafter, verifier)
    except ProtocolError as error:
        found = (error.code.name, error.field)
        expect("refusal", found, (vector.get("refused"), vector.get("field")))
        return
    expect("refusal", None, vector.get("refused"))
    numbers: Vector = {name: int(getattr(agreed, name)) for name in NUMBERS}
    if agreed.hidden_layers:
        numbers["hidden_layers"] = list(agreed.hidden_layers)
    due = {"features": 0} | vector["agreed"]
    expect("agreement", {**numbers, "version": int(agreed.version)}, due)
    if drafter.role is Role.DRAFTER:
        expect("the verifier's agreement", agree(verifier, answer(drafter, agreed)), agreed)
