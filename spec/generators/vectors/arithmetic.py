"""Vectors of logits to counts (A1 to A12)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from spec.generators.vectors.form import Numbers, Vector, as_binary32, binary32, binary64, sparse
from spec.oracle import arithmetic as oracle

INF, NAN = math.inf, math.nan
TOTAL = oracle.TOTAL
BOUNDARIES = [1, 2, 3, *(n + d for n in (4, 8, 16, 32, 64, 128, 256, 512) for d in (-1, 0, 1))]
OFF: dict[str, int] = {"top_k": 0, "top_p": TOTAL, "min_p": 0, "support": 0}


def quantise(
    note: str,
    logits: Sequence[float],
    temperature: float = 1.0,
    total: int = TOTAL,
    **policy: int,
) -> Vector:
    """One row of logits under one policy: its counts, or the reason it is refused for."""
    row = [as_binary32(z) if math.isfinite(z) else z for z in logits]
    t = as_binary32(temperature)
    settings = {**OFF, **policy}
    vector: Vector = {
        "op": "quantise",
        "note": note,
        "logits": binary32(row),
        "temperature": binary32([t]),
        **settings,
        "total": total,
    }
    chosen: dict[str, Any] = {**settings, "limit": settings["support"]}
    del chosen["support"]
    try:
        counts = oracle.quantise(row, Fraction(t), total=total, **chosen)
    except oracle.Refused as refusal:
        return {**vector, "refused": refusal.code}
    if len(row) <= 17 and t:
        vector["weights"] = oracle.weights(row, Fraction(t))
    return {**vector, **sparse(counts)}


def normal_row(size: int, seed: int, scale: float = 3.0) -> list[float]:
    """A row like a model's."""
    numbers = Numbers(seed)
    return [scale * numbers.normal() for _ in range(size)]


def adversarial() -> Iterator[Vector]:
    """Rows where an implementation that is nearly right goes wrong."""
    yield quantise("one id", [3.5])
    yield quantise("two equal ids", [1.0, 1.0])
    yield quantise("three equal ids: the odd ticket goes to the lowest", [0.0, 0.0, 0.0])
    yield quantise("seven equal ids, 100 tickets", [0.25] * 7, total=100)
    yield quantise("all tickets but one or two", [0.0, -16.6])
    yield quantise("half a ticket", [0.0, -17.32868])
    yield quantise("on the cutoff", [0.0, -27.0, -26.999998, -27.000002])
    yield quantise("weight one and zero of 2^38", [0.0, -26.33, -26.34, -26.35])
    yield quantise("masked ids", [-INF, 2.0, -INF, 1.0, -INF])
    yield quantise("one legal id", [-INF, -INF, -4.0, -INF])
    yield quantise("negative zero and zero tie", [-0.0, 0.0, -1.0])
    yield quantise("near ties at T = 0.7", [2.0, 2.0000002, 1.9999999, 2.0000005, -1.0], 0.7)
    yield quantise("bfloat16 near ties", [1.0, 1.0078125, 0.99609375, 1.0, 1.015625], 0.7)
    yield quantise("largest logits", [3.4028235e38, 3.4028235e38, 3.4028233e38])
    yield quantise("whole range", [3.4028235e38, -3.4028235e38, 0.0])
    yield quantise("subnormal logits", [1e-45, 0.0, -1e-45, 2e-45])
    yield quantise("fewer tickets than ids", normal_row(17, 1, 0.1), total=8)
    yield quantise("total of one ticket", [0.0, 0.0, 1.0], total=1)
    yield quantise("total that is no power of two", normal_row(9, 2), total=1000003)
    yield quantise("coldest temperature", [0.0, -0.0001, -0.001], 2.0**-14)
    yield quantise("hottest temperature", [100.0, -100.0, 0.0, 50.0], 2.0**14)
    yield quantise("greedy", [1.0, 4.0, 4.0, -INF], 0.0)
    yield quantise("greedy ignores the policy", [1.0, 4.0, 4.0, 3.0], 0.0, top_k=2, support=2)


def refused() -> Iterator[Vector]:
    """Rows that have no q."""
    yield quantise("NaN", [0.0, NAN, 1.0])
    yield quantise("NaN below the cutoff of others", [100.0, NAN])
    yield quantise("plus infinity", [0.0, INF])
    yield quantise("plus infinity, greedy", [0.0, INF], 0.0)
    yield quantise("NaN, greedy", [NAN, 1.0], 0.0)
    yield quantise("minus infinity alone", [-INF, -INF])
    yield quantise("minus infinity alone, greedy", [-INF], 0.0)
    yield quantise("NaN comes before zero mass", [-INF, NAN])
    yield quantise("temperature under 2^-14", [0.0, 1.0], 2.0**-15)
    yield quantise("temperature over 2^14", [0.0, 1.0], 2.0**15)
    yield quantise("negative temperature", [0.0, 1.0], -1.0)


def policies() -> Iterator[Vector]:
    """Every restriction alone and together, with ties on its edge."""
    row = normal_row(24, 5, 2.0)
    tied = [1.0, 2.0, 2.0, 0.5, 2.0, 1.0, 1.0, 2.0]
    for k in (1, 2, 3, 5, 24, 100):
        yield quantise(f"top_k {k}", row, 0.9, top_k=k)
    for k in (1, 3, 5, 6):
        yield quantise(f"top_k {k} with ties", tied, top_k=k)
        yield quantise(f"support {k} with ties", tied, support=k)
    for p in (1, TOTAL // 10, TOTAL // 2, TOTAL - 1, TOTAL):
        yield quantise(f"top_p {p}", row, top_p=p)
        yield quantise(f"top_p {p} with ties", tied, top_p=p)
    yield quantise("top_p on the edge of a prefix", [0.0, 0.0, 0.0, 0.0], top_p=TOTAL // 2)
    yield quantise("top_p one ticket past it", [0.0, 0.0, 0.0, 0.0], top_p=TOTAL // 2 + 1)
    for p in (1, TOTAL // 20, TOTAL // 2, TOTAL):
        yield quantise(f"min_p {p}", row, min_p=p)
    for k in (1, 2, 8, 16, 24, 40):
        yield quantise(f"support {k}", row, 0.8, support=k)
    yield quantise("all of them", row, 0.8, top_k=12, top_p=15_000_000, min_p=10_000, support=6)
    yield quantise("support drops zero counts", [0.0, -18.0, -20.0, -1.0], support=4)
    yield quantise("masked ids inside top_k", [-INF, 0.0, -INF, -1.0], top_k=3)


def sizes() -> Iterator[Vector]:
    """Vocabularies at powers of two and one either side."""
    for size in BOUNDARIES:
        yield quantise(f"V = {size}", normal_row(size, 100 + size), 0.8)
        if size > 4:
            yield quantise(f"V = {size}, sparse", normal_row(size, 900 + size), 1.0, support=4)
    yield quantise("V = 1025, flat", normal_row(1025, 77, 0.01))
    yield quantise("V = 1025, peaked", normal_row(1025, 78, 12.0))


def allocations() -> Iterator[Vector]:
    """A9 and A11 on integer weights."""
    cases: list[tuple[str, list[int], int]] = [
        ("thirds", [1, 1, 1], TOTAL),
        ("remainders tie: lowest ids", [1] * 7, 10),
        ("largest remainder wins", [5, 3, 1], 10),
        ("zeros never get a ticket", [0, 1, 0, 1, 1], 4),
        ("largest weights", [1 << 38] * 5, TOTAL),
        ("a weight of one beside 2^38", [1 << 38, 1], TOTAL),
        ("already tickets", [3, 0, 5], 8),
        ("more ids than tickets", list(range(1, 20)), 7),
        ("negative", [1, -1, 3], 8),
        ("zero mass", [0, 0], 8),
    ]
    for note, row, total in cases:
        vector: Vector = {"op": "allocate", "note": note, "weights": row, "total": total}
        try:
            yield {**vector, "counts": oracle.allocate(row, total)}
        except oracle.Refused as refusal:
            yield {**vector, "refused": refusal.code}


def fp32_weights() -> Iterator[Vector]:
    """A12."""
    for note, row in (
        ("tenths", [0.1, 0.6, 0.3]),
        ("rounded first", [1 / 3, 1 / 3, 1 / 3 + 1e-9]),
        ("zero weights", [0.0, 2.5, 0.0]),
        ("far apart", [1.0, 1e-30, 3e20]),
        ("subnormal in binary32", [1e-45, 3e-45]),
        ("vanishes in binary32", [1e-50, 1.0]),
        ("all vanish", [1e-50, 1e-60]),
        ("overflows binary32", [1e39, 1.0]),
        ("NaN", [NAN, 1.0]),
        ("infinite", [INF, 1.0]),
        ("negative", [-1.0, 2.0]),
        ("zero mass", [0.0, 0.0]),
    ):
        vector: Vector = {"op": "fp32_weights", "note": note, "weights": binary64(row)}
        try:
            integers, total = oracle.fp32_weights(row)
            # As text: they may be larger than what a JSON reader keeps exactly.
            yield {**vector, "integers": [str(n) for n in integers], "sum": str(total)}
        except oracle.Refused as refusal:
            yield {**vector, "refused": refusal.code}


def exponentials() -> Iterator[Vector]:
    """A4, to the last bit."""
    numbers = Numbers(4)
    points = [
        0.0,
        -1e-300,
        -(2.0**-53),
        -0.34657359027997264,
        -0.34657359027997270,
        -1.0,
        -26.5,
        -27.0,
    ]
    points += [-numbers.real(0, 27) for _ in range(60)]
    points += [-k * math.log(2) for k in range(1, 39)]
    for d in points:
        result = float(oracle.exp64(Fraction(d)))
        yield {"op": "exp64", "d": binary64([d]), "result": binary64([result])}


def vectors() -> Iterator[Vector]:
    """All of them."""
    for part in (exponentials, allocations, fp32_weights, adversarial, refused, policies, sizes):
        yield from part()
