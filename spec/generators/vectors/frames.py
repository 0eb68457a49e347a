"""Vectors of frames, good and bad, and of what two HELLOs agree on (P1 to P8, P12 and P14)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spec.generators.vectors.form import Vector
from spec.oracle import frames, messages
from spec.oracle.agreement import agree
from spec.oracle.frames import LAYOUTS, TYPE_NUMBERS, crc32c, table, write_fields, write_frame
from spec.oracle.messages import write_hello, write_reply, write_row, write_step

Fields = dict[str, Any]
DENSE, SPARSE, IDS_ONLY = LAYOUTS["DENSE"], LAYOUTS["SPARSE"], LAYOUTS["IDS_ONLY"]
TOTAL = frames.TOTAL
DIGEST = bytes(range(16))

HELLO: Fields = {
    "role": 1,
    "adaptation": 0,
    "layouts": 6,
    "vocab_size": 6,
    "max_sessions": 4,
    "max_slots": 3,
    "max_depth": 4,
    "shard_count": 1,
    "max_support": 4,
    "max_context": 64,
    "max_step_bytes": 512,
    "max_reply_bytes": 512,
    "hidden_rows": 2,
    "hidden_dtype": 3,
    "hidden_width": 2,
    "q_semantic": "dyadic24-standard-v1",
    "verifier_semantic": "standard-residual-v1",
    "rng_abi": "philox4x32-10-sha256-v1",
    "precision": "fp32le-m24",
    "id_map_hash": bytes(range(32)),
    "tokenizer_hash": bytes(range(32, 64)),
    "draft_identity": bytes(32),
    "target_identity": bytes(range(64, 96)),
}
DRAFTER: Fields = {
    **HELLO,
    "role": 2,
    "adaptation": 1,
    "max_sessions": 2,
    "hidden_rows": 0,
    "hidden_dtype": 0,
    "hidden_width": 0,
    "draft_identity": bytes(range(96, 128)),
    "target_identity": bytes(32),
}
HELLO_V1 = {**HELLO, "layouts": 1, "max_support": 0, "hidden_rows": 0}
DRAFTER_V1 = {**DRAFTER, "layouts": 1, "max_support": 0}
LIMITS_V2 = agree(HELLO, {**DRAFTER, "hidden_rows": 2, "hidden_dtype": 3, "hidden_width": 2})
LIMITS_V1 = agree(HELLO_V1, DRAFTER_V1)
STEP: Fields = {
    "session": 7,
    "slot": 1,
    "layout": SPARSE,
    "committed_outcome": 0,
    "generation": 1,
    "round": 1,
    "anchor": 2,
    "first_position": 3,
    "depth": 2,
    "committed_accepted": 0,
    "committed_round": 0,
    "temperature": 0.75,
    "top_k": 5,
    "top_p": TOTAL,
    "min_p": 0,
    "support": 3,
    "context_version": 9,
    "proposal_key": 0x0123456789ABCDEF,
    "prefix_digest": DIGEST,
    "base": 0,
    "hidden_rows": 0,
}
STEP_V1 = {**STEP, "layout": IDS_ONLY, "temperature": 0, "top_k": 0, "support": 0}
STEP_V1["proposal_key"] = 0
REPLY: Fields = {
    "session": 7,
    "slot": 1,
    "layout": SPARSE,
    "generation": 1,
    "round": 1,
    "first_position": 3,
    "prefix_digest": DIGEST,
    "context_version": 9,
    "shard_index": 0,
    "shard_count": 1,
    "shard_begin": 0,
    "shard_end": 6,
    "support": 3,
}
COMPLETE: Fields = {
    **{name: REPLY[name] for name in ("session", "slot", "generation", "round")},
    **{name: REPLY[name] for name in ("first_position", "prefix_digest", "context_version")},
    "status": 0,
    "reply_bytes": 144,
    "reply_checksum": 0xDEADBEEF,
}
COMMIT: Fields = {
    "session": 7,
    "generation": 1,
    "round": 1,
    "outcome": 1,
    "accepted": 1,
    "token": 5,
    "committed": 5,
    "prefix_digest": DIGEST,
}
ONCE_RESERVED = ("features", "processor_bytes", "admitted")  # left out where they are zero
COUNTS = [0, TOTAL // 2, 0, TOTAL // 4, TOTAL // 4, 0]


# One frame ---------------------------------------------------------------------------------------


def frame(name: str, payload: bytes, version: int = 2) -> bytes:
    """A whole frame."""
    return write_frame(version, TYPE_NUMBERS[name], payload)


def payload_of(name: str, fields: Fields) -> bytes:
    """A payload without a variable part."""
    return write_fields(name, fields)


def shown(name: str, message: Mapping[str, Any]) -> Fields:
    """A message as JSON: u64 as decimal text, bytes and binary32 as hexadecimal digits."""
    result: Fields = {}
    for field, kind in table(name):
        value = message[field]
        if kind.startswith("zero") or (field in ONCE_RESERVED and not value):
            continue
        if kind == "u64":
            value = str(value)
        elif kind == "f32":
            value = struct.pack("<f", value).hex()
        elif isinstance(value, bytes):
            value = value.hex()
        result[field] = value
    if name == "HELLO" and "hidden_layers" in message:
        result["hidden_layers"] = message["hidden_layers"]
        if message["projection"]:
            result["projection"] = message["projection"].hex()
    if name == "STEP":
        result |= {"tokens": message["tokens"], "hidden": message["hidden"].hex()}
        if message["processors"]:
            result["processors"] = message["processors"].hex()
    if name == "REPLY":
        result["rows"] = [{**row, "q": row["q"].hex()} for row in message["rows"]]
    return result


def stream(
    note: str,
    data: bytes,
    expected: str = "",
    *,
    version: int = 2,
    limits: Mapping[str, Any] | None = LIMITS_V2,
) -> Vector:
    """A stream of frames: its messages, then the code it is refused with, if any.

    ``expected`` is the code that the vector was written for; the oracle must find it.
    """
    bounds = messages.BOUNDS_BEFORE_HELLO if limits is None else messages.bounds(limits)
    found: list[Fields] = []
    code = ""
    try:
        for read in frames.read_frames(data, version, bounds):
            message = messages.read_message(read, limits)
            item: Fields = {"type": read.type, "fields": shown(read.type, message)}
            if read.type == "REPLY" and limits is not None:
                item |= judged(message, limits)
                code = item.get("dropped", "")
            found.append(item)
    except frames.Refused as refusal:
        code = refusal.code
    assert code == expected, f"{note}: the oracle says {code!r}, not {expected!r}"
    refused = {"refused": code} if code and not any("dropped" in item for item in found) else {}
    return {
        "op": "stream",
        "note": note,
        "version": version,
        "limits": numbers(limits),
        "bytes": data.hex(),
        "messages": found,
        **refused,
    }


def judged(reply: Fields, limits: Mapping[str, Any]) -> Fields:
    """The counts of a reply, or the code that its proposal is dropped with."""
    try:
        return {"counts": messages.read_rows(reply, limits)}
    except frames.Refused as refusal:
        return {"dropped": refusal.code}


def numbers(limits: Mapping[str, Any] | None) -> Fields | None:
    """The limits that are whole numbers, and the layers whose states are agreed."""
    if limits is None:
        return None
    return {
        name: value
        for name, value in limits.items()
        if isinstance(value, int | list) and (value or name not in ONCE_RESERVED)
    }


# Good ones ---------------------------------------------------------------------------------------


def rows(layout: int = SPARSE, support: int = 3) -> list[Fields]:
    """Two rows whose second is a point mass, with pads where the layout has them."""
    point = [0, 0, 0, 0, 0, TOTAL]
    return [write_row(3, 1, COUNTS, layout, support), write_row(4, 5, point, layout, support)]


def good() -> Iterator[Vector]:
    """Every message in every form."""
    yield stream("HELLO", frame("HELLO", payload_of("HELLO", HELLO)), limits=None)
    hello = frame("HELLO", payload_of("HELLO", HELLO_V1), 1)
    yield stream("HELLO of v1", hello, version=1, limits=None)
    first = frame("STEP", write_step(STEP, [4, 0, 5]))
    yield stream("first STEP", first)
    later: Fields = {"round": 5, "committed_round": 4, "base": 1, "temperature": 0.0}
    for outcome, accepted in ((1, 2), (2, 2), (3, 0), (4, 1)):
        rider = {**later, "committed_outcome": outcome, "committed_accepted": accepted}
        data = frame("STEP", write_step({**STEP, **rider}, [0, 5]))
        yield stream(f"STEP, outcome {outcome}", data)
    dense = {**STEP, "layout": DENSE, "support": 0, "hidden_rows": 2}
    yield stream("STEP with hidden rows", frame("STEP", write_step(dense, [1, 2, 3], bytes(16))))
    step = frame("STEP", write_step(STEP_V1, [1, 2, 3]), 1)
    yield stream("STEP of v1", step, version=1, limits=LIMITS_V1)
    yield stream("REPLY sparse with pads", frame("REPLY", write_reply(REPLY, rows())))
    wide = {**REPLY, "support": 4}
    yield stream("REPLY sparse, more pads", frame("REPLY", write_reply(wide, rows(SPARSE, 4))))
    dense = {**REPLY, "layout": DENSE, "support": 6}
    yield stream("REPLY dense", frame("REPLY", write_reply(dense, rows(DENSE, 6))))
    ids = {**REPLY, "layout": IDS_ONLY, "support": 0}
    reply = frame("REPLY", write_reply(ids, rows(IDS_ONLY, 0)), 1)
    yield stream("REPLY of v1", reply, version=1, limits=LIMITS_V1)
    yield stream("COMPLETE", frame("COMPLETE", payload_of("COMPLETE", COMPLETE)))
    for status in range(1, 6):
        without = {**COMPLETE, "status": status, "reply_bytes": 0, "reply_checksum": 0}
        data = frame("COMPLETE", payload_of("COMPLETE", without))
        yield stream(f"COMPLETE, status {status}", data)
    for outcome, accepted, token in ((1, 1, 5), (2, 2, 0), (3, 0, 3), (4, 2, -1)):
        commit = {**COMMIT, "outcome": outcome, "accepted": accepted, "token": token}
        yield stream(f"COMMIT, outcome {outcome}", frame("COMMIT", payload_of("COMMIT", commit)))
    reset = {"session": 7, "generation": 1, "next_generation": 2}
    yield stream("RESET", frame("RESET", payload_of("RESET", reset)))
    yield stream("CANCEL", frame("CANCEL", payload_of("CANCEL", {"session": 7, "generation": 2})))
    error = {"session": 0, "generation": 0, "round": 0, "code": 32, "field": "vocab_size"}
    yield stream("ERROR", frame("ERROR", payload_of("ERROR", error)), limits=None)
    error = {"session": 2**64 - 1, "generation": 3, "round": 4, "code": 97, "field": ""}
    yield stream("ERROR of a session", frame("ERROR", payload_of("ERROR", error)))
    ping = frame("PING", payload_of("PING", {"nonce": 2**64 - 1}))
    pong = frame("PONG", payload_of("PONG", {"nonce": 0}))
    yield stream("PING and PONG", ping + pong)
    yield stream("nothing", b"")
    yield stream("five frames in a row", first + ping + first + pong + ping)
    yield stream("frames up to one that is broken", ping + pong + ping[:-1] + b"\0", BAD_PAYLOAD)


# Bad frames --------------------------------------------------------------------------------------

BAD_PAYLOAD = "BAD_PAYLOAD_CHECKSUM"


def header(magic: bytes, version: int, number: int, flags: int, length: int) -> bytes:
    """A header with a checksum that is right."""
    head = magic + struct.pack("<BBHI", version, number, flags, length)
    return head + struct.pack("<I", crc32c(head))


def bad_frames() -> Iterator[Vector]:
    """P1 and P2: every check, and which of two comes first."""
    ping = frame("PING", payload_of("PING", {"nonce": 1}))
    yield stream("an HTTP request", b"GET / HTTP/1.1\r\n\r\n", "BAD_MAGIC")
    yield stream("a pickle", b"\x80\x04\x95\x0b\x00\x00\x00", "BAD_MAGIC")
    yield stream("one wrong byte", b"E", "BAD_MAGIC")
    yield stream("the last byte of the magic", b"DWIX", "BAD_MAGIC")
    yield stream("magic before checksum", b"DWIX" + ping[4:], "BAD_MAGIC")
    yield stream("a header cut short", ping[:9], "TRUNCATED")
    yield stream("a payload cut short", ping[:20], "TRUNCATED")
    yield stream("a trailer cut short", ping[:-1], "TRUNCATED")
    for byte in (4, 5, 6, 8, 11, 12, 15):
        broken = bytearray(ping)
        broken[byte] ^= 0x40
        yield stream(f"bit of byte {byte} flipped", bytes(broken), "BAD_HEADER_CHECKSUM")
    for byte in (16, 23, 24, 27):
        broken = bytearray(ping)
        broken[byte] ^= 1
        yield stream(f"bit of byte {byte} flipped", bytes(broken), BAD_PAYLOAD)
    cases = [
        ("version 3", 3, 9, 0, 8, "BAD_VERSION"),
        ("version 0", 0, 9, 0, 8, "BAD_VERSION"),
        ("version 1 on a connection of v2", 1, 9, 0, 8, "BAD_VERSION"),
        ("version before type", 3, 77, 1, 8, "BAD_VERSION"),
        ("type 0", 2, 0, 0, 8, "BAD_TYPE"),
        ("type 13", 2, 13, 0, 8, "BAD_TYPE"),
        ("type before flags", 2, 13, 1, 8, "BAD_TYPE"),
        ("CHALLENGE where no key is held", 2, 11, 0, 32, "AUTHENTICATION_FAILED"),
        ("PROOF where no key is held", 2, 12, 0, 32, "AUTHENTICATION_FAILED"),
        ("flags", 2, 9, 1, 8, "BAD_FLAGS"),
        ("flags before length", 2, 9, 0x8000, 9, "BAD_FLAGS"),
        ("one byte too long", 2, 9, 0, 9, "FRAME_TOO_LARGE"),
        ("the longest length", 2, 3, 0, 2**32 - 1, "FRAME_TOO_LARGE"),
        ("over the agreed bound", 2, 2, 0, 513, "FRAME_TOO_LARGE"),
        ("one byte too short", 2, 9, 0, 7, "BAD_LENGTH"),
        ("an empty payload", 2, 2, 0, 0, "BAD_LENGTH"),
    ]
    for note, version, number, flags, length, code in cases:
        yield stream(note, header(b"DWIR", version, number, flags, length), code)
    step = frame("STEP", write_step(STEP, [4, 0, 5]))
    yield stream("STEP before HELLO", step, "UNEXPECTED_MESSAGE", limits=None)
    yield stream("PING before HELLO", ping, "UNEXPECTED_MESSAGE", limits=None)


# Two HELLOs --------------------------------------------------------------------------------------


def hello(note: str, verifier: Fields, drafter: Fields, field: str = "") -> Vector:
    """What the drafter makes of a verifier's HELLO, or the field that it refuses."""
    version = 1 if verifier["layouts"] == 1 else 2
    vector: Vector = {
        "op": "hello",
        "note": note,
        "version": version,
        "verifier": write_hello(verifier).hex(),
        "drafter": write_hello(drafter).hex(),
    }
    try:
        limits = agree(verifier, drafter)
    except frames.Refused as refusal:
        assert refusal.field == field, f"{note}: the oracle names {refusal.field}"
        return {**vector, "refused": refusal.code, "field": refusal.field}
    assert not field, note
    return {**vector, "agreed": numbers(limits)}


def hellos() -> Iterator[Vector]:
    """P5, P7 and P8: what is equal, what is the smaller, what must suffice."""
    yield hello("v2", HELLO, DRAFTER)
    yield hello("v1", HELLO_V1, DRAFTER_V1)
    yield hello("one layout in common", {**HELLO, "layouts": 4}, DRAFTER)
    smaller: Fields = {"max_slots": 1, "max_depth": 2, "max_support": 3, "max_context": 32}
    yield hello("the smaller of each", HELLO, {**DRAFTER, **smaller})
    yield hello(
        "no layout in common", {**HELLO, "layouts": 2}, {**DRAFTER, "layouts": 4}, "layouts"
    )
    yield hello("two verifiers", HELLO, {**DRAFTER, "role": 1}, "role")
    other: Sequence[tuple[str, Any]] = (
        ("vocab_size", 7),
        ("q_semantic", "softmax-v1"),
        ("verifier_semantic", "typical-v1"),
        ("rng_abi", "mt19937"),
        ("precision", "bf16"),
        ("id_map_hash", bytes(32)),
        ("tokenizer_hash", bytes(32)),
        ("shard_count", 2),
    )
    for field, value in other:
        yield hello(f"another {field}", HELLO, {**DRAFTER, field: value}, field)
    wanted = {**HELLO, "draft_identity": bytes(range(1, 33))}
    yield hello("another draft", wanted, DRAFTER, "draft_identity")
    known = {**DRAFTER, "target_identity": bytes(range(1, 33))}
    yield hello("another target", HELLO, known, "target_identity")
    yield hello("another adaptation", {**HELLO, "adaptation": 2}, DRAFTER, "adaptation")
    rows_of = {"hidden_rows": 1, "hidden_dtype": 2, "hidden_width": 2}
    yield hello("another element type", HELLO, {**DRAFTER, **rows_of}, "hidden_dtype")
    rows_of = {"hidden_rows": 1, "hidden_dtype": 3, "hidden_width": 4}
    yield hello("another width", HELLO, {**DRAFTER, **rows_of}, "hidden_width")
    yield hello("replies too large", HELLO, {**DRAFTER, "max_reply_bytes": 255}, "max_reply_bytes")
    yield hello("steps too large", HELLO, {**DRAFTER, "max_step_bytes": 300}, "max_step_bytes")
    yield hello("no support", HELLO, {**DRAFTER, "max_support": 0}, "max_support")
    yield hello("context under the depth", HELLO, {**DRAFTER, "max_context": 4}, "max_context")
