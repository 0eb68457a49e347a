"""Vectors of payloads in which two things are wrong: the code is that of the first (P3, P14)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from spec.generators.vectors.form import Vector
from spec.generators.vectors.frames import (
    COMMIT,
    COMPLETE,
    COUNTS,
    DENSE,
    HELLO,
    HELLO_V1,
    IDS_ONLY,
    LIMITS_V1,
    ONCE_RESERVED,
    REPLY,
    STEP,
    STEP_V1,
    TOTAL,
    Fields,
    frame,
    payload_of,
    rows,
    stream,
)
from spec.generators.vectors.refusals import NAN, number, reply_with, sparse_row
from spec.oracle.frames import crc32c, kind_bytes, table
from spec.oracle.messages import write_reply, write_row, write_step

NOT_TEXT, BAD_PADS = b"dyadic 24", b"dyadic24\0x"
ERROR: Final[Fields] = {"session": 0, "generation": 0, "round": 0, "code": 1, "field": "depth"}


def in_use(name: str, payload: bytes, reserved: str) -> bytes:
    """The payload with the first byte of a reserved field in use."""
    begin = 0
    for field, kind in table(name):
        if field == reserved:
            break
        begin += kind_bytes(kind)
    return payload[:begin] + b"\1" + payload[begin + 1 :]


def two(
    name: str,
    payload: bytes,
    wrong: Fields,
    code: str,
    reserved: str = "",
    note: str = "",
    **options: Any,
) -> Vector:
    """One vector; ``wrong`` and ``reserved`` say what is wrong in it."""
    if reserved:
        payload = in_use(name, payload, reserved)
    named = "reserved" if reserved in ONCE_RESERVED else reserved  # as here, where it is
    what = " and ".join([*wrong, *([named] if named else []), *([note] if note else [])])
    data = frame(name, payload, options.get("version", 2))
    return stream(f"{name}, both wrong: {what}", data, code, **options)


def plain(
    name: str, base: Fields, cases: Sequence[tuple[Fields, str, str]], **options: Any
) -> Iterator[Vector]:
    """Vectors of payloads without a variable part: wrong fields, the code, a reserved field."""
    for wrong, code, reserved in cases:
        yield two(name, payload_of(name, {**base, **wrong}), wrong, code, reserved, **options)


def hellos() -> Iterator[Vector]:
    """Reserved fields and text before all others, in the order of the table."""
    cases: list[tuple[Fields, str, str]] = [
        ({"q_semantic": NOT_TEXT}, "BAD_PADDING", "features"),
        ({"q_semantic": NOT_TEXT, "rng_abi": BAD_PADS}, "BAD_FIELD", ""),
        ({"q_semantic": BAD_PADS, "rng_abi": NOT_TEXT}, "BAD_PADDING", ""),
        ({"role": 0}, "BAD_PADDING", "features"),
        ({"layouts": 0, "precision": NOT_TEXT}, "BAD_FIELD", ""),
        ({"max_depth": 65, "precision": BAD_PADS}, "BAD_PADDING", ""),
        ({"role": 0, "layouts": 0}, "BAD_FIELD", ""),
        ({"layouts": 0, "vocab_size": 0}, "WRONG_VERSION_FOR_LAYOUT", ""),
        ({"vocab_size": (1 << 24) + 1, "max_sessions": 0}, "LIMIT_EXCEEDED", ""),
        ({"max_sessions": 0, "max_depth": 65}, "BAD_FIELD", ""),
        ({"shard_count": 7, "hidden_dtype": 4}, "LIMIT_EXCEEDED", ""),
    ]
    for case in cases:  # v1 has no features: there the byte is reserved
        version, base = (1, HELLO_V1) if case[2] == "features" else (2, HELLO)
        yield from plain("HELLO", base, [case], version=version, limits=None)


def steps() -> Iterator[Vector]:
    """Reserved, zero identities, the policy, the rest of the table, the length, the tokens."""
    cases: list[tuple[Fields, str, str]] = [
        ({"session": 0}, "BAD_PADDING", "processor_bytes"),
        ({"depth": 5}, "BAD_PADDING", "processor_bytes"),
        ({"round": 0, "layout": IDS_ONLY}, "BAD_FIELD", ""),
        ({"round": 0, "depth": 5}, "BAD_FIELD", ""),
        ({"layout": IDS_ONLY, "depth": 0}, "WRONG_VERSION_FOR_LAYOUT", ""),
        ({"slot": 3, "layout": 3}, "BAD_FIELD", ""),
        ({"slot": 3, "temperature": float("nan")}, "BAD_FIELD", ""),
        ({"slot": 3, "support": 0}, "BAD_FIELD", ""),
        ({"anchor": 3, "top_k": 7}, "LIMIT_EXCEEDED", ""),
        ({"committed_outcome": 5, "min_p": TOTAL + 1}, "LIMIT_EXCEEDED", ""),
        ({"depth": 5, "top_p": 0}, "LIMIT_EXCEEDED", ""),
        ({"temperature": -1.0, "top_k": 7}, "BAD_FIELD", ""),
        ({"top_k": 7, "top_p": 0}, "LIMIT_EXCEEDED", ""),
        ({"top_p": 0, "support": 5}, "BAD_FIELD", ""),
        ({"slot": 3, "first_position": 2}, "LIMIT_EXCEEDED", ""),
        ({"first_position": 2, "committed_accepted": 5}, "BAD_FIELD", ""),
        ({"committed_outcome": 5, "committed_accepted": 5}, "BAD_FIELD", ""),
        ({"committed_accepted": 5, "hidden_rows": 3}, "LIMIT_EXCEEDED", ""),
        ({"committed_accepted": 1, "hidden_rows": 3}, "BAD_FIELD", ""),
    ]
    for wrong, code, reserved in cases:
        yield two("STEP", write_step({**STEP, **wrong}, [4, 0, 5]), wrong, code, reserved)
    long = write_step({**STEP, "hidden_rows": 3}, [4, 0, 5]) + bytes(4)
    yield two("STEP", long, {"hidden_rows": 3}, "LIMIT_EXCEEDED", note="its length")
    long = write_step(STEP, [4, 6, 5]) + bytes(4)
    yield two("STEP", long, {}, "BAD_LENGTH", note="its length and a committed id")
    for wrong, code in (
        ({"layout": DENSE, "depth": 5}, "WRONG_VERSION_FOR_LAYOUT"),
        ({"top_k": 7, "proposal_key": 1}, "LIMIT_EXCEEDED"),
        ({"slot": 3, "proposal_key": 1}, "BAD_FIELD"),
        ({"slot": 3, "top_p": 5}, "BAD_FIELD"),
    ):
        payload = write_step({**STEP_V1, **wrong}, [1, 2, 3])
        yield two("STEP", payload, wrong, code, note="(v1)", version=1, limits=LIMITS_V1)


def others() -> Iterator[Vector]:
    """COMPLETE, COMMIT, RESET, CANCEL and ERROR."""
    complete: list[tuple[Fields, str, str]] = [
        ({"slot": 3}, "BAD_PADDING", "reserved"),
        ({"session": 0, "slot": 3}, "BAD_FIELD", ""),
        ({"slot": 3, "round": 0}, "BAD_FIELD", ""),
        ({"slot": 3, "status": 6}, "LIMIT_EXCEEDED", ""),
        ({"status": 6, "reply_bytes": 513}, "BAD_FIELD", ""),
    ]
    yield from plain("COMPLETE", COMPLETE, complete)
    commit: list[tuple[Fields, str, str]] = [
        ({"generation": 0}, "BAD_PADDING", "reserved"),
        ({"round": 0, "accepted": 5}, "BAD_FIELD", ""),
        ({"outcome": 5, "accepted": 5}, "BAD_FIELD", ""),
        ({"outcome": 3, "token": 6}, "BAD_FIELD", ""),
        ({"accepted": 5, "token": 6}, "LIMIT_EXCEEDED", ""),
        ({"token": 6, "committed": 0}, "ID_OUT_OF_RANGE", ""),
    ]
    yield from plain("COMMIT", COMMIT, commit)
    yield from plain(
        "CANCEL", {"session": 1, "generation": 1}, [({"session": 0}, "BAD_PADDING", "reserved")]
    )
    error: list[tuple[Fields, str, str]] = [
        ({"field": NOT_TEXT}, "BAD_PADDING", "reserved"),
        ({"code": 999, "field": BAD_PADS}, "BAD_PADDING", ""),
    ]
    yield from plain("ERROR", ERROR, error)


def replies() -> Iterator[Vector]:
    """The head of a REPLY: the shard stands before the support, the length after both."""
    cases: list[tuple[Fields, str, str]] = [
        ({"session": 0}, "BAD_PADDING", "reserved"),
        ({"slot": 3}, "BAD_PADDING", "admitted"),
        ({"round": 0, "slot": 3}, "BAD_FIELD", ""),
        ({"slot": 3, "layout": 9}, "LIMIT_EXCEEDED", ""),
        ({"layout": 9, "shard_index": 1}, "BAD_FIELD", ""),
        ({"layout": IDS_ONLY, "shard_end": 7}, "WRONG_VERSION_FOR_LAYOUT", ""),
        ({"shard_end": 7, "support": 0}, "WRONG_SHARD", ""),
        ({"shard_index": 1, "support": 5}, "WRONG_SHARD", ""),
    ]
    for wrong, code, reserved in cases:
        yield two("REPLY", write_reply({**REPLY, **wrong}, rows()), wrong, code, reserved)
    wrong = {"support": 5}
    long = write_reply({**REPLY, **wrong}, rows()) + b"\0"
    yield two("REPLY", long, wrong, "LIMIT_EXCEEDED", note="its length")
    many = [write_row(3 + i, 1, COUNTS, 2, 3) for i in range(5)]
    wrong = {"shard_count": 2}
    yield two("REPLY", write_reply({**REPLY, **wrong}, many), wrong, "LIMIT_EXCEEDED", note="depth")


def q_of_rows() -> Iterator[Vector]:
    """P14: of what a row says in its head, and of its ids, their q's and its pads."""
    row = write_row(3, 1, COUNTS, 2, 3)
    heads: list[tuple[Fields, str]] = [
        ({"position": 4, "checksum": 1}, "WRONG_POSITION"),
        ({"checksum": 1, "token": 6}, "BAD_Q_CHECKSUM"),
        ({"token": 6, "entries": 0}, "ID_OUT_OF_RANGE"),
    ]
    for wrong, code in heads:
        yield stream(f"row, both wrong: {' and '.join(wrong)}", reply_with({**row, **wrong}), code)
    none, half, one = number(0.0), number(0.5), number(1.0)
    ticket = number(2.0**-24)
    cases = [
        ("an id twice and -1.0", [1, 1, -1], [half, number(-1.0), none], 2, "DUPLICATE_ID"),
        ("ids that fall and a NaN", [2, 1, -1], [NAN, half, none], 2, "UNSORTED_SUPPORT"),
        ("id V and an id twice", [6, 6, -1], [half, half, none], 2, "ID_OUT_OF_RANGE"),
        ("-1.0", [1, 2, -1], [number(-1.0), one, none], 2, "NEGATIVE_Q"),
        ("-1.0 and a NaN", [1, 2, -1], [number(-1.0), NAN, none], 2, "NEGATIVE_Q"),
        ("zero in use and a NaN", [1, 2, -1], [none, NAN, none], 2, "ZERO_COUNT_ENTRY"),
        ("a pad in use and the mass", [1, 2, -1], [half, ticket, ticket], 2, "NONZERO_PADDING"),
        ("the mass and the token", [2, 3, -1], [half, ticket, none], 2, "WRONG_MASS"),
    ]
    for note, ids, values, entries, code in cases:
        yield stream(f"row: {note}", reply_with(sparse_row(ids, values, entries)), code)
    q = b"".join([number(-1.0), NAN, number(1.0), number(1.0), none, none])
    dense: Fields = {"position": 3, "token": 1, "entries": 6, "checksum": crc32c(q), "q": q}
    base = {**REPLY, "layout": DENSE, "support": 6}
    yield stream("dense row: -1.0 and a NaN", reply_with(dense, base), "NEGATIVE_Q")
    least = struct.pack("<I", 0x80000001)  # the negative number that is nearest to zero
    q = b"".join([least, one, none, none, none, none])
    dense = {**dense, "checksum": crc32c(q), "q": q}
    yield stream("dense row: a negative subnormal", reply_with(dense, base), "NEGATIVE_Q")


def vectors() -> Iterator[Vector]:
    """Every order that has codes to tell it by."""
    for part in (hellos, steps, others, replies, q_of_rows):
        yield from part()
