"""Vectors of hidden states: what HELLO agrees on and what a STEP may hold (P36, P37)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from spec.generators.vectors.form import Vector
from spec.generators.vectors.frames import (
    DRAFTER,
    HELLO,
    LIMITS_V2,
    STEP,
    Fields,
    frame,
    hello,
    stream,
)
from spec.oracle.agreement import agree
from spec.oracle.messages import MOST_LAYERS, write_hello, write_step
from spec.oracle.processors import REPETITION, write_processors

BFLOAT16, BINARY32 = 2, 3
DIGEST = bytes(range(128, 160))
WIDE: Fields = {"features": 2, "max_step_bytes": 1 << 12}
OFFER: Fields = {**HELLO, **WIDE, "hidden_width": 3}
READER: Fields = {
    **DRAFTER,
    **WIDE,
    "hidden_rows": 3,
    "hidden_dtype": BINARY32,
    "hidden_width": 2,
    "hidden_layers": [1, 11, 300],
    "projection": b"",
}
FUSING: Fields = {**OFFER, "features": 18, "hidden_dtype": BFLOAT16}
FUSABLE: Fields = {**READER, "features": 18, "projection": DIGEST}
RAW = agree(OFFER, READER)
FUSED = agree(FUSING, FUSABLE)
MIRRORED = agree(
    {**OFFER, "features": 3, "max_step_bytes": 1 << 15},
    {**READER, "features": 3, "max_step_bytes": 1 << 15},
)
RAW_ROW = struct.pack("<6f", 1.5, -0.0, 2.0**-149, -(2.0**127), 0.0, 65504.0)
FUSED_ROW = bytes.fromhex("803f 7f7f".replace(" ", ""))  # 1 and the largest of bfloat16
NOT_FINITE = {
    BINARY32: ("0000807f", "000080ff", "0000c07f", "010080ff", "ffffff7f"),
    BFLOAT16: ("807f", "80ff", "c07f", "81ff", "ff7f"),
}


def frames() -> Iterator[Vector]:
    """HELLOs, agreements, and STEPs with rows, good and bad."""
    yield from blocks()
    yield from agreements()
    yield from good_steps()
    yield from bad_steps()


def blocks() -> Iterator[Vector]:
    """What stands behind the fields of a HELLO with the feature."""
    most: Fields = {**READER, "hidden_layers": list(range(0, 2 * MOST_LAYERS, 2))}
    for note, each in (
        ("of a verifier that offers states", OFFER),
        ("of a drafter that reads them", READER),
        ("of a drafter with a projection", FUSABLE),
        ("one layer, the last there may be", {**READER, "hidden_layers": [0xFFFF]}),
        ("as many layers as may be", most),
        ("fused rows without states", {**DRAFTER, "features": 16}),
    ):
        yield stream(f"HELLO, {note}", frame("HELLO", write_hello(each)), limits=None)
    for note, data, code in (
        ("a verifier with a block", write_hello(OFFER) + write_hello(READER)[280:], "BAD_LENGTH"),
        ("a drafter without its block", write_hello(READER)[:280], "BAD_LENGTH"),
        ("half a count", write_hello(READER)[:281], "BAD_LENGTH"),
        ("a layer cut off", write_hello(READER)[:-1], "BAD_LENGTH"),
        ("a byte behind the layers", write_hello(READER) + b"\0", "BAD_LENGTH"),
        ("a projection that is cut off", write_hello(FUSABLE)[:-1], "BAD_LENGTH"),
        ("a projection without the feature", write_hello(READER) + DIGEST, "BAD_LENGTH"),
        ("a drafter without states and a block", write_hello(DRAFTER) + b"\1\0\0\0", "BAD_LENGTH"),
        ("no layers", write_hello({**READER, "hidden_layers": []}), "BAD_FIELD"),
        ("a layer twice", write_hello({**READER, "hidden_layers": [3, 3]}), "BAD_FIELD"),
        ("layers that fall", write_hello({**READER, "hidden_layers": [0, 4, 2]}), "BAD_FIELD"),
        (
            "more layers than may be named",
            write_hello({**READER, "hidden_layers": list(range(MOST_LAYERS + 1))})[: 280 + 130],
            "LIMIT_EXCEEDED",
        ),
        ("states of no rows", write_hello({**OFFER, "hidden_rows": 0}), "BAD_FIELD"),
        (
            "states of a type that they have not",
            write_hello({**OFFER, "hidden_dtype": 1}),
            "BAD_FIELD",
        ),
        ("states without a type", write_hello({**OFFER, "hidden_dtype": 0}), "BAD_FIELD"),
        ("more than any block holds", write_hello(READER) + bytes(200), "FRAME_TOO_LARGE"),
    ):
        yield stream(f"HELLO, {note}", frame("HELLO", data), code, limits=None)


def agreements() -> Iterator[Vector]:
    """The type is the verifier's, layers and width are the drafter's, and a row's size follows."""
    yield hello("states", OFFER, READER)
    yield hello("states in bfloat16", {**OFFER, "hidden_dtype": BFLOAT16}, READER)
    yield hello("fused states", FUSING, FUSABLE)
    yield hello("a projection that the verifier has not", OFFER, FUSABLE)
    yield hello("a projection that the drafter has not", FUSING, READER)
    yield hello("states of the verifier alone", OFFER, DRAFTER)
    yield hello("states of the drafter alone", HELLO, READER)
    yield hello("fused rows without states", {**HELLO, "features": 16}, {**DRAFTER, "features": 16})
    room = 96 + 4 * 64 + 2 * 3 * 2 * 4
    yield hello("just room for the rows", OFFER, {**READER, "max_step_bytes": room})
    small = {**READER, "max_step_bytes": room - 1}
    yield hello("no room for the rows", OFFER, small, "max_step_bytes")


def asked(rows: bytes, count: int, tokens: tuple[int, ...] = (4, 0, 5), **more: bytes) -> bytes:
    """A STEP with rows."""
    return frame("STEP", write_step({**STEP, "hidden_rows": count}, tokens, rows, **more))


def good_steps() -> Iterator[Vector]:
    """STEPs with rows."""
    yield stream("STEP, states agreed and none sent", asked(b"", 0), limits=RAW)
    yield stream("STEP, one row of states", asked(RAW_ROW, 1), limits=RAW)
    yield stream("STEP, states of all before the anchor", asked(RAW_ROW * 2, 2), limits=RAW)
    yield stream("STEP, fused rows", asked(FUSED_ROW * 2, 2), limits=FUSED)
    processors = write_processors([(REPETITION, (0, 1.25), ())])
    data = asked(RAW_ROW, 1, processors=processors)
    yield stream("STEP, states and processors", data, limits=MIRRORED)
    nan = struct.pack("<2f", float("nan"), float("inf"))
    yield stream("STEP, opaque rows where no states are agreed", asked(nan, 1), limits=LIMITS_V2)


def bad_steps() -> Iterator[Vector]:
    """Rows that are too many, of another size, not finite, or without a token."""
    yield stream("more rows than agreed", asked(RAW_ROW * 3, 3), "LIMIT_EXCEEDED", limits=RAW)
    one = {**STEP, "base": 2, "hidden_rows": 1}
    data = frame("STEP", write_step(one, [5], RAW_ROW))
    yield stream("a row of the anchor", data, "BAD_FIELD", limits=RAW)
    none = {**STEP, "base": 3, "hidden_rows": 1}
    data = frame("STEP", write_step(none, [], RAW_ROW))
    yield stream("a row of no token", data, "BAD_FIELD", limits=RAW)
    yield stream("a row cut short", asked(RAW_ROW[:-1], 1), "BAD_LENGTH", limits=RAW)
    yield stream("a raw row where rows are fused", asked(RAW_ROW, 1), "BAD_LENGTH", limits=FUSED)
    yield stream("a fused row where rows are raw", asked(FUSED_ROW, 1), "BAD_LENGTH", limits=RAW)
    data = asked(RAW_ROW[:-4] + bytes.fromhex("0000807f"), 1, (4, 6, 5))
    yield stream("a committed id before the rows", data, "ID_OUT_OF_RANGE", limits=RAW)
    data = asked(RAW_ROW[:-4] + bytes.fromhex("0000807f"), 1, processors=b"\0")
    yield stream("rows before the processors", data, "BAD_FIELD", limits=MIRRORED)
    for dtype, row, limits in ((BINARY32, RAW_ROW, RAW), (BFLOAT16, FUSED_ROW, FUSED)):
        for digits in NOT_FINITE[dtype]:
            bad = bytes.fromhex(digits)
            for at in range(0, len(row), len(bad)):
                data = asked(row + row[:at] + bad + row[at + len(bad) :], 2)
                yield stream(f"an element {digits} at {at}", data, "BAD_FIELD", limits=limits)
