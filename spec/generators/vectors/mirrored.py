"""Vectors of the features of HELLO and of mirrored processors (P33, P34)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spec.generators.vectors.form import Vector
from spec.generators.vectors.frames import (
    DRAFTER,
    DRAFTER_V1,
    HELLO,
    HELLO_V1,
    LIMITS_V1,
    LIMITS_V2,
    STEP,
    STEP_V1,
    Fields,
    frame,
    hello,
    payload_of,
    stream,
)
from spec.oracle.agreement import agree
from spec.oracle.messages import write_step
from spec.oracle.processors import (
    ALLOW,
    BIAS,
    MOST_IDS,
    MOST_PROCESSORS,
    NO_REPEAT_NGRAM,
    OCCURRENCE,
    REPETITION,
    SEQUENCES,
    SUPPRESS,
    Processor,
    write_processors,
)

ALWAYS = 2**32 - 1
WIDE: Fields = {"features": 1, "max_step_bytes": 1 << 15}
MIRRORED = agree(
    {**HELLO, **WIDE}, {**DRAFTER, **WIDE, "hidden_rows": 2, "hidden_dtype": 3, "hidden_width": 2}
)
ONE_OF_EACH: tuple[Processor, ...] = (
    (REPETITION, (0, 1.25), ()),
    (OCCURRENCE, (3, 0.5, -0.25), ()),
    (NO_REPEAT_NGRAM, (0, 3), ()),
    (BIAS, (), ((0, -100.0), (4, 2.5), (5, -math.inf))),
    (SUPPRESS, (0, 7), (1, 2)),
    (ALLOW, (9, ALWAYS), (0, 1, 5)),
    (SEQUENCES, (2,), ((-math.inf, (1, 2)), (0.75, (3,)))),
)


def asked(processors: bytes, **changes: object) -> bytes:
    """A STEP with processors."""
    return frame("STEP", write_step({**STEP, **changes}, [4, 0, 5], processors=processors))


def frames() -> Iterator[Vector]:
    """HELLOs, agreements, and STEPs with processors, good and bad."""
    yield from hellos()
    yield from good_steps()
    yield from bad_steps()


def hellos() -> Iterator[Vector]:
    """Features are offered, agreed where both have them, ignored where nobody knows them."""
    for features in (1, 0x80, 0xFF):
        data = frame("HELLO", payload_of("HELLO", {**HELLO, "features": features}))
        yield stream(f"HELLO, features {features:#x}", data, limits=None)
    yield hello("features of both", {**HELLO, **WIDE}, {**DRAFTER, **WIDE})
    yield hello("features of the verifier alone", {**HELLO, **WIDE}, DRAFTER)
    yield hello("features of the drafter alone", HELLO, {**DRAFTER, **WIDE})
    unknown = {**WIDE, "features": 0x81}
    yield hello("a feature that one does not know", {**HELLO, **unknown}, {**DRAFTER, **WIDE})
    yield hello("v1 has none", HELLO_V1, DRAFTER_V1)
    small = {**DRAFTER, **WIDE, "max_step_bytes": 96 + 4 * 64 + (1 << 14) - 1}
    yield hello("no room for processors", {**HELLO, **WIDE}, small, "max_step_bytes")
    enough = {**small, "max_step_bytes": 96 + 4 * 64 + (1 << 14)}
    yield hello("just room for processors", {**HELLO, **WIDE}, enough)


def good_steps() -> Iterator[Vector]:
    """STEPs with processors."""
    yield stream("STEP, no processors", asked(b""), limits=MIRRORED)
    for processor in ONE_OF_EACH:
        data = asked(write_processors([processor]))
        yield stream(f"STEP, a processor of kind {processor[0]}", data, limits=MIRRORED)
    every = write_processors(ONE_OF_EACH)
    yield stream("STEP, one of each kind", asked(every), limits=MIRRORED)
    yield stream(
        "STEP, in another order", asked(write_processors(ONE_OF_EACH[::-1])), limits=MIRRORED
    )
    rows = {**STEP, "hidden_rows": 1}
    data = frame("STEP", write_step(rows, [4, 0, 5], bytes(range(8)), every))
    yield stream("STEP, hidden rows and processors", data, limits=MIRRORED)
    many = write_processors([ONE_OF_EACH[0]] * MOST_PROCESSORS)
    yield stream("STEP, as many processors as may be", asked(many), limits=MIRRORED)
    edges: tuple[Processor, ...] = (
        (REPETITION, (ALWAYS, 2.0**-14), ()),
        (OCCURRENCE, (0, 2.0**14, -(2.0**14)), ()),
        (NO_REPEAT_NGRAM, (0, MOST_IDS), ()),
        (SEQUENCES, (0,), ((0.0, (0,) * MOST_IDS),)),
    )
    yield stream("STEP, the largest numbers", asked(write_processors(edges)), limits=MIRRORED)
    kind, numbers, _ = ONE_OF_EACH[4]
    full = write_processors([(kind, numbers, tuple(range(6)))])
    yield stream("STEP, every id", asked(full), limits=MIRRORED)


def bad_steps() -> Iterator[Vector]:
    """What is no encoding of processors, or not agreed."""
    one = write_processors(ONE_OF_EACH[:1])
    yield stream("processors that were not agreed", asked(one), "BAD_PADDING", limits=LIMITS_V2)
    data = frame("STEP", write_step(STEP_V1, [1, 2, 3], processors=one), 1)
    yield stream("processors in v1", data, "BAD_PADDING", version=1, limits=LIMITS_V1)
    too_many = write_processors([ONE_OF_EACH[0]] * (MOST_PROCESSORS + 1))
    yield stream("one processor too many", asked(too_many), "BAD_FIELD", limits=MIRRORED)
    yield stream("too many bytes", asked(bytes((1 << 14) + 1)), "LIMIT_EXCEEDED", limits=MIRRORED)
    yield stream("a byte behind them", asked(one + b"\0"), "BAD_FIELD", limits=MIRRORED)
    data = asked(one)[:-4]
    payload = write_step(STEP, [4, 0, 5], processors=one) + b"\0"
    yield stream(
        "a byte that is not counted", frame("STEP", payload), "BAD_LENGTH", limits=MIRRORED
    )
    payload = write_step(STEP, [4, 0, 5], processors=one)[:-1]
    yield stream("a byte too few", frame("STEP", payload), "BAD_LENGTH", limits=MIRRORED)
    payload = write_step(STEP, [4, 6, 5], processors=b"\0")
    yield stream(
        "a committed id before the processors", frame("STEP", payload), "ID_OUT_OF_RANGE",
        limits=MIRRORED,
    )  # fmt: skip
    for size in range(1, len(one)):
        note = f"a processor cut to {size} bytes"
        yield stream(note, asked(one[:size]), "BAD_FIELD", limits=MIRRORED)
    for processor in ONE_OF_EACH[3:]:
        cut = write_processors([processor])[:-1]
        note = f"a processor of kind {processor[0]} cut short"
        yield stream(note, asked(cut), "BAD_FIELD", limits=MIRRORED)
    for processor in wrong():
        data = asked(write_processors([processor]))
        yield stream(f"no processor: {processor}", data, "BAD_FIELD", limits=MIRRORED)
    for head in (b"\0\0\0\0", b"\x08\0\0\0", b"\x01\0\x01\0" + one[4:], b"\x04\0\0\0"):
        yield stream(f"no processor: {head.hex()}", asked(head), "BAD_FIELD", limits=MIRRORED)


def wrong() -> Iterator[Processor]:
    """Each number and each id outside what it may be."""
    for penalty in (0.0, -0.0, -1.0, 2.0**-15, 2.0**15, math.inf, math.nan):
        yield REPETITION, (0, penalty), ()
    for value in (-0.0, 2.0**15, -(2.0**15), math.inf, -math.inf, math.nan):
        yield OCCURRENCE, (0, value, 0.0), ()
        yield OCCURRENCE, (0, 0.0, value), ()
    for size in (0, MOST_IDS + 1):
        yield NO_REPEAT_NGRAM, (0, size), ()
    for bias in (-0.0, 2.0**15, math.inf, math.nan):
        yield BIAS, (), ((0, bias),)
        yield SEQUENCES, (0,), ((bias, (0,)),)
    for ids in ((6,), (-1,), (2, 1), (1, 1)):
        yield BIAS, (), tuple((each, 1.0) for each in ids)
        yield SUPPRESS, (0, 1), ids
        yield ALLOW, (0, 1), ids
    for begin, end in ((0, 0), (2, 1)):
        yield SUPPRESS, (begin, end), (0,)
        yield ALLOW, (begin, end), (0,)
    for sequence in ((), (0,) * (MOST_IDS + 1), (6,), (0, -1)):
        yield SEQUENCES, (0,), ((1.0, sequence),)
