"""Vectors of payloads that are not canonical and of q's that are dropped (P3, P5, P12, P14)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    REPLY,
    SPARSE,
    STEP,
    STEP_V1,
    TOTAL,
    Fields,
    frame,
    payload_of,
    rows,
    stream,
)
from spec.oracle.frames import crc32c, table_bytes
from spec.oracle.messages import write_reply, write_row, write_step

NAN, INFINITY = bytes.fromhex("0000c07f"), bytes.fromhex("0000807f")


def number(value: float) -> bytes:
    """A binary32 number."""
    return struct.pack("<f", value)


def fields_of(
    name: str, base: Fields, cases: Sequence[tuple[str, Any, str]], **options: Any
) -> Iterator[Vector]:
    """One changed field a vector."""
    for field, value, code in cases:
        data = frame(name, payload_of(name, {**base, field: value}), options.get("version", 2))
        yield stream(f"{name}.{field} = {value!r}"[:60], data, code, **options)


def bad_hellos() -> Iterator[Vector]:
    """HELLO by itself."""
    cases: list[tuple[str, Any, str]] = [
        ("role", 0, "BAD_FIELD"),
        ("role", 3, "BAD_FIELD"),
        ("adaptation", 3, "BAD_FIELD"),
        ("layouts", 8 | 2, "BAD_FIELD"),
        ("layouts", 0, "WRONG_VERSION_FOR_LAYOUT"),
        ("layouts", 1, "WRONG_VERSION_FOR_LAYOUT"),
        ("layouts", 7, "WRONG_VERSION_FOR_LAYOUT"),
        ("vocab_size", 0, "BAD_FIELD"),
        ("vocab_size", (1 << 24) + 1, "LIMIT_EXCEEDED"),
        ("max_sessions", 0, "BAD_FIELD"),
        ("max_slots", 0, "BAD_FIELD"),
        ("max_depth", 0, "BAD_FIELD"),
        ("max_depth", 65, "LIMIT_EXCEEDED"),
        ("shard_count", 0, "BAD_FIELD"),
        ("shard_count", 7, "LIMIT_EXCEEDED"),
        ("max_support", 7, "LIMIT_EXCEEDED"),
        ("max_context", 0, "BAD_FIELD"),
        ("max_step_bytes", 0, "BAD_FIELD"),
        ("max_reply_bytes", 0, "BAD_FIELD"),
        ("hidden_dtype", 4, "BAD_FIELD"),
        ("hidden_dtype", 0, "BAD_FIELD"),
        ("hidden_width", 0, "BAD_FIELD"),
        ("q_semantic", b"dyadic24\0x", "BAD_PADDING"),
        ("q_semantic", b"dyadic 24", "BAD_FIELD"),
        ("rng_abi", b"philox\x80", "BAD_FIELD"),
        ("precision", b"fp32\n", "BAD_FIELD"),
    ]
    yield from fields_of("HELLO", HELLO, cases, limits=None)
    yield from fields_of(
        "HELLO",
        HELLO_V1,
        [("layouts", 2, "WRONG_VERSION_FOR_LAYOUT")],
        limits=None,
        version=1,
    )
    payload = bytearray(payload_of("HELLO", HELLO_V1))
    payload[35] = 1
    data = frame("HELLO", bytes(payload), 1)
    yield stream("HELLO, reserved byte", data, "BAD_PADDING", version=1, limits=None)


def bad_steps() -> Iterator[Vector]:
    """STEP."""
    cases: list[tuple[str, Any, str]] = [
        ("session", 0, "BAD_FIELD"),
        ("slot", 3, "LIMIT_EXCEEDED"),
        ("layout", 3, "BAD_FIELD"),
        ("layout", IDS_ONLY, "WRONG_VERSION_FOR_LAYOUT"),
        ("committed_outcome", 5, "BAD_FIELD"),
        ("committed_outcome", 1, "BAD_FIELD"),
        ("committed_accepted", 1, "BAD_FIELD"),
        ("committed_accepted", 5, "LIMIT_EXCEEDED"),
        ("committed_round", 1, "BAD_FIELD"),
        ("generation", 0, "BAD_FIELD"),
        ("round", 0, "BAD_FIELD"),
        ("first_position", 2, "BAD_FIELD"),
        ("anchor", 3, "BAD_FIELD"),
        ("base", 1, "BAD_FIELD"),
        ("base", 2**32 - 1, "BAD_FIELD"),
        ("depth", 0, "BAD_FIELD"),
        ("depth", 5, "LIMIT_EXCEEDED"),
        ("temperature", float("nan"), "BAD_FIELD"),
        ("temperature", float("inf"), "BAD_FIELD"),
        ("temperature", -0.0, "BAD_FIELD"),
        ("temperature", -1.0, "BAD_FIELD"),
        ("temperature", 2.0**-15, "BAD_FIELD"),
        ("temperature", 2.0**15, "BAD_FIELD"),
        ("top_k", 7, "LIMIT_EXCEEDED"),
        ("top_p", 0, "BAD_FIELD"),
        ("top_p", TOTAL + 1, "LIMIT_EXCEEDED"),
        ("min_p", TOTAL + 1, "LIMIT_EXCEEDED"),
        ("support", 0, "BAD_FIELD"),
        ("support", 5, "LIMIT_EXCEEDED"),
        ("hidden_rows", 3, "LIMIT_EXCEEDED"),
        ("hidden_rows", 1, "BAD_LENGTH"),
    ]
    for field, value, code in cases:
        data = frame("STEP", write_step({**STEP, field: value}, [4, 0, 5]))
        yield stream(f"STEP.{field} = {value!r}", data, code)
    for tokens in ([4, -1, 5], [4, 6, 5], [4, 2**31 - 1, 5], [4, -(2**31), 5]):
        data = frame("STEP", write_step(STEP, tokens))
        yield stream(f"STEP, committed {tokens[1]}", data, "ID_OUT_OF_RANGE")
    dense = {**STEP, "layout": DENSE}
    yield stream("dense with support", frame("STEP", write_step(dense, [1, 2, 3])), "BAD_FIELD")
    payload = write_step(STEP, [4, 0, 5])
    yield stream("STEP, a token too many", frame("STEP", payload + bytes(4)), "BAD_LENGTH")
    yield stream("STEP, a token too few", frame("STEP", payload[:-4]), "BAD_LENGTH")
    reserved = bytearray(payload)
    reserved[table_bytes("STEP") - 1] = 1
    yield stream("STEP, reserved", frame("STEP", bytes(reserved)), "BAD_PADDING")
    rider: Fields = {"round": 3, "committed_round": 2, "committed_outcome": 3}
    data = frame("STEP", write_step({**STEP, **rider, "committed_accepted": 1}, [1, 2, 3]))
    yield stream("drafts accepted in a target-only round", data, "BAD_FIELD")
    for field, value in (("temperature", 1.0), ("top_k", 1), ("top_p", 5), ("proposal_key", 1)):
        data = frame("STEP", write_step({**STEP_V1, field: value}, [1, 2, 3]), 1)
        note = f"v1 STEP.{field} = {value}"
        yield stream(note, data, "BAD_FIELD", version=1, limits=LIMITS_V1)
    data = frame("STEP", write_step({**STEP_V1, "layout": DENSE}, [1, 2, 3]), 1)
    yield stream("v1, dense", data, "WRONG_VERSION_FOR_LAYOUT", version=1, limits=LIMITS_V1)


def bad_others() -> Iterator[Vector]:
    """COMPLETE, COMMIT, RESET, CANCEL and ERROR."""
    yield from fields_of(
        "COMPLETE",
        COMPLETE,
        [
            ("slot", 3, "LIMIT_EXCEEDED"),
            ("status", 6, "BAD_FIELD"),
            ("status", 1, "BAD_FIELD"),
            ("reply_bytes", 0, "BAD_FIELD"),
            ("reply_bytes", 513, "LIMIT_EXCEEDED"),
            ("session", 0, "BAD_FIELD"),
        ],
    )
    yield from fields_of(
        "COMMIT",
        COMMIT,
        [
            ("outcome", 0, "BAD_FIELD"),
            ("outcome", 5, "BAD_FIELD"),
            ("outcome", 3, "BAD_FIELD"),
            ("outcome", 4, "BAD_FIELD"),
            ("accepted", 5, "LIMIT_EXCEEDED"),
            ("token", -1, "ID_OUT_OF_RANGE"),
            ("token", 6, "ID_OUT_OF_RANGE"),
            ("committed", 0, "BAD_FIELD"),
            ("round", 0, "BAD_FIELD"),
        ],
    )
    reset = {"session": 1, "generation": 2, "next_generation": 3}
    yield from fields_of(
        "RESET", reset, [("next_generation", 2, "BAD_FIELD"), ("generation", 0, "BAD_FIELD")]
    )
    cancel = frame("CANCEL", payload_of("CANCEL", {"session": 1, "generation": 1})[:-1] + b"\1")
    yield stream("CANCEL, reserved", cancel, "BAD_PADDING")
    error = {"session": 0, "generation": 0, "round": 0, "code": 1, "field": "depth"}
    yield from fields_of(
        "ERROR",
        error,
        [
            ("code", 0, "BAD_FIELD"),
            ("code", 10, "BAD_FIELD"),
            ("code", 999, "BAD_FIELD"),
            ("field", "colour", "BAD_FIELD"),
            ("field", b"depth\0\0x", "BAD_PADDING"),
            ("field", b"%s%n \x1b", "BAD_FIELD"),
        ],
    )


def bad_reply_heads() -> Iterator[Vector]:
    """The head of a REPLY, and its length."""
    cases: list[tuple[str, Any, str]] = [
        ("slot", 3, "LIMIT_EXCEEDED"),
        ("layout", 9, "BAD_FIELD"),
        ("layout", IDS_ONLY, "WRONG_VERSION_FOR_LAYOUT"),
        ("shard_count", 2, "WRONG_SHARD"),
        ("shard_index", 1, "WRONG_SHARD"),
        ("shard_begin", 1, "WRONG_SHARD"),
        ("shard_end", 5, "WRONG_SHARD"),
        ("shard_end", 7, "WRONG_SHARD"),
        ("support", 0, "BAD_FIELD"),
        ("support", 5, "LIMIT_EXCEEDED"),
        ("support", 4, "BAD_LENGTH"),
        ("layout", DENSE, "BAD_FIELD"),
        ("round", 0, "BAD_FIELD"),
    ]
    for field, value, code in cases:
        data = frame("REPLY", write_reply({**REPLY, field: value}, rows()))
        yield stream(f"REPLY.{field} = {value}", data, code)
    whole = write_reply(REPLY, rows())
    yield stream("REPLY, one byte more", frame("REPLY", whole + b"\0"), "BAD_LENGTH")
    yield stream("REPLY, one byte less", frame("REPLY", whole[:-1]), "BAD_LENGTH")
    yield stream("REPLY, no rows", frame("REPLY", write_reply(REPLY, [])), "BAD_FIELD")
    many = [write_row(3 + i, 1, COUNTS, SPARSE, 3) for i in range(5)]
    yield stream("REPLY, too deep", frame("REPLY", write_reply(REPLY, many)), "LIMIT_EXCEEDED")


def reply_with(row: Mapping[str, Any], base: Fields = REPLY) -> bytes:
    """A reply of one row."""
    return frame("REPLY", write_reply(base, [row]))


def sparse_row(ids: Sequence[int], values: Sequence[bytes], entries: int, token: int = 1) -> Fields:
    """A sparse row of given bytes, with the checksum that belongs to them."""
    q = struct.pack(f"<{len(ids)}i", *ids) + b"".join(values)
    head: Fields = {"position": 3, "token": token, "entries": entries}
    return {**head, "checksum": crc32c(q), "q": q}


def bad_sparse() -> Iterator[Vector]:
    """P14 for sparse rows; the connection goes on, the proposal does not."""
    half, none, one = number(0.5), number(0.0), number(1.0)
    ticket = number(2.0**-24)
    most = number(1 - 2.0**-24)
    cases = [
        ("an id twice", [1, 1, -1], [half, half, none], 2, "DUPLICATE_ID"),
        ("an id twice, both zero", [1, 1, 2], [none, none, one], 3, "DUPLICATE_ID"),
        ("ids that fall", [2, 1, -1], [half, half, none], 2, "UNSORTED_SUPPORT"),
        ("id V", [1, 6, -1], [half, half, none], 2, "ID_OUT_OF_RANGE"),
        ("id 2^31 - 1", [1, 2**31 - 1, -1], [half, half, none], 2, "ID_OUT_OF_RANGE"),
        ("id -2", [-2, 1, -1], [half, half, none], 2, "ID_OUT_OF_RANGE"),
        ("a pad in use", [1, -1, -1], [one, none, none], 2, "ID_OUT_OF_RANGE"),
        ("NaN", [1, 2, -1], [NAN, half, none], 2, "NON_FINITE_Q"),
        ("infinite", [1, 2, -1], [INFINITY, half, none], 2, "NON_FINITE_Q"),
        ("negative", [1, 2, -1], [number(-0.5), one, none], 2, "NEGATIVE_Q"),
        ("negative zero", [1, 2, -1], [one, number(-0.0), none], 2, "NEGATIVE_ZERO_Q"),
        ("half a ticket", [1, 2, -1], [number(2.0**-25), one, none], 2, "NON_DYADIC_Q"),
        ("a ticket and a half", [1, 2, -1], [number(1.5 * 2.0**-24), one, none], 2, "NON_DYADIC_Q"),
        ("subnormal", [1, 2, -1], [number(1e-45), one, none], 2, "NON_DYADIC_Q"),
        ("a tenth", [1, 2, -1], [number(0.1), number(0.9), none], 2, "NON_DYADIC_Q"),
        ("zero in use", [1, 2, -1], [one, none, none], 2, "ZERO_COUNT_ENTRY"),
        ("one ticket short", [1, 2, -1], [half, number(0.5 - 2.0**-24), none], 2, "WRONG_MASS"),
        ("one ticket over", [1, 2, -1], [one, ticket, none], 2, "WRONG_MASS"),
        ("two of them whole", [1, 2, -1], [one, one, none], 2, "WRONG_MASS"),
        ("above one", [1, -1, -1], [number(2.0), none, none], 1, "WRONG_MASS"),
        ("the largest number", [1, -1, -1], [number(2.0**127), none, none], 1, "WRONG_MASS"),
        ("a pad with q", [1, 2, -1], [half, half, ticket], 2, "NONZERO_PADDING"),
        ("a pad with -0.0", [1, 2, -1], [half, half, number(-0.0)], 2, "NONZERO_PADDING"),
        ("a pad with an id", [1, 2, 3], [half, half, none], 2, "NONZERO_PADDING"),
        ("the token outside", [2, 3, -1], [half, half, none], 2, "ZERO_Q_AT_TOKEN"),
        ("no entries", [-1, -1, -1], [none, none, none], 0, "MISSING_Q"),
        ("more entries than slots", [1, 2, 3], [half, ticket, most], 4, "WRONG_SIZE"),
    ]
    for note, ids, values, entries, code in cases:
        yield stream(note, reply_with(sparse_row(ids, values, entries)), code)
    yield stream(
        "one ticket and the rest", reply_with(sparse_row([1, 4, -1], [ticket, most, none], 2))
    )


def bad_dense() -> Iterator[Vector]:
    """P14 for dense rows."""
    base = {**REPLY, "layout": DENSE, "support": 6}
    good = [number(count / TOTAL) for count in COUNTS]
    cases: list[tuple[str, dict[int, bytes], str]] = [
        ("NaN", {0: NAN}, "NON_FINITE_Q"),
        ("negative", {0: number(-0.25)}, "NEGATIVE_Q"),
        ("negative zero", {5: number(-0.0)}, "NEGATIVE_ZERO_Q"),
        ("not dyadic", {0: number(0.1)}, "NON_DYADIC_Q"),
        ("no mass", {v: number(0) for v in range(6)}, "WRONG_MASS"),
        ("a ticket more", {0: number(2.0**-24)}, "WRONG_MASS"),
        ("bytes swapped", {v: good[v][::-1] for v in range(6)}, "NON_DYADIC_Q"),
        ("no q at the token", {1: good[0], 0: good[1]}, "ZERO_Q_AT_TOKEN"),
    ]
    for note, changes, code in cases:
        q = b"".join(changes.get(v, good[v]) for v in range(6))
        head: Fields = {"position": 3, "token": 1, "entries": 6, "checksum": crc32c(q), "q": q}
        yield stream(f"dense, {note}", reply_with(head, base), code)
    for entries, code in ((5, "MISSING_Q"), (7, "WRONG_SIZE")):
        row = {**write_row(3, 1, COUNTS, DENSE, 6), "entries": entries}
        yield stream(f"dense, {entries} entries", reply_with(row, base), code)


def bad_rows() -> Iterator[Vector]:
    """The heads of rows."""
    row = write_row(3, 1, COUNTS, SPARSE, 3)
    yield stream("another position", reply_with({**row, "position": 4}), "WRONG_POSITION")
    yield stream("a wrong checksum", reply_with({**row, "checksum": 1}), "BAD_Q_CHECKSUM")
    for token in (-1, 6, -(2**31), 2**31 - 1):
        yield stream(f"token {token}", reply_with({**row, "token": token}), "ID_OUT_OF_RANGE")
    first, second = rows()
    broken = {**second, "position": 9}
    data = frame("REPLY", write_reply(REPLY, [{**first, "token": 0}, broken]))
    yield stream("all heads before any q", data, "WRONG_POSITION")
    ids = {**REPLY, "layout": IDS_ONLY, "support": 0}
    point = write_row(3, 1, COUNTS, IDS_ONLY, 0)
    for field, value, code in (
        ("entries", 1, "WRONG_SIZE"),
        ("checksum", 1, "BAD_Q_CHECKSUM"),
        ("token", 6, "ID_OUT_OF_RANGE"),
    ):
        data = frame("REPLY", write_reply(ids, [{**point, field: value}]), 1)
        yield stream(f"v1 row, {field} {value}", data, code, version=1, limits=LIMITS_V1)


def vectors() -> Iterator[Vector]:
    """Every refusal of payloads and rows."""
    for part in (
        bad_hellos,
        bad_steps,
        bad_others,
        bad_reply_heads,
        bad_rows,
        bad_sparse,
        bad_dense,
    ):
        yield from part()
