"""Vectors of proposals that were stopped early (P35)."""

from __future__ import annotations

from collections.abc import Iterator

from spec.generators.vectors.form import Vector
from spec.generators.vectors.frames import (
    DENSE,
    DRAFTER,
    HELLO,
    IDS_ONLY,
    LIMITS_V1,
    LIMITS_V2,
    REPLY,
    SPARSE,
    TOTAL,
    Fields,
    frame,
    hello,
    rows,
    stream,
)
from spec.oracle.agreement import agree
from spec.oracle.messages import EARLY_STOP, write_reply, write_row

STOPS: Fields = {"features": EARLY_STOP}
STOPPED = agree({**HELLO, **STOPS}, {**DRAFTER, **STOPS})


def answered(admitted: int, layout: int = SPARSE, support: int = 3) -> bytes:
    """A REPLY of two rows; the second has all tickets on id 0 where it is not admitted."""
    first, second = rows(layout, support)
    if admitted == 1:
        second = write_row(4, 0, [TOTAL, 0, 0, 0, 0, 0], layout, support)
    reply = {**REPLY, "layout": layout, "support": support, "admitted": admitted}
    return frame("REPLY", write_reply(reply, [first, second]))


def frames() -> Iterator[Vector]:
    """HELLOs with the feature, REPLYs that admit all, one, or what cannot be."""
    yield hello("early stop of both", {**HELLO, **STOPS}, {**DRAFTER, **STOPS})
    yield hello("early stop of the verifier alone", {**HELLO, **STOPS}, DRAFTER)
    for layout, support in ((SPARSE, 3), (DENSE, 6)):
        for admitted in (0, 1):
            note = f"REPLY in layout {layout}, {admitted or 'all'} admitted"
            yield stream(note, answered(admitted, layout, support), limits=STOPPED)
    for admitted in (2, 3, 65535):
        note = f"REPLY, {admitted} of 2 admitted"
        yield stream(note, answered(admitted), "BAD_FIELD", limits=STOPPED)
    yield stream("early stop not agreed", answered(1), "BAD_PADDING", limits=LIMITS_V2)
    ids = {**REPLY, "layout": IDS_ONLY, "support": 0, "admitted": 1}
    data = frame("REPLY", write_reply(ids, rows(IDS_ONLY, 0)), 1)
    yield stream("early stop in v1", data, "BAD_PADDING", version=1, limits=LIMITS_V1)
    wrong = {**REPLY, "admitted": 2, "shard_count": 2}
    data = frame("REPLY", write_reply(wrong, rows()))
    yield stream("REPLY, both wrong: admitted and shard_count", data, "BAD_FIELD", limits=STOPPED)
