"""The form of a vector file: a header line and one JSON object a line (spec/conformance.md)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from spec.oracle.words import philox

Vector = dict[str, Any]

FORMAT, VERSION = "draftwire-vectors", 1


def lines(kind: str, vectors: Iterable[Vector]) -> str:
    """The text of a file: vectors are numbered in their order."""
    numbered = [{"id": f"{kind}-{n:04d}", **vector} for n, vector in enumerate(vectors, start=1)]
    header = {"format": FORMAT, "version": VERSION, "kind": kind, "count": len(numbered)}
    return "".join(
        json.dumps(item, separators=(",", ":"), ensure_ascii=True) + "\n"
        for item in [header, *numbered]
    )


def write(folder: Path, kind: str, vectors: Iterable[Vector]) -> Path:
    """Write ``kind``.jsonl."""
    path = folder / f"{kind}.jsonl"
    path.write_text(lines(kind, vectors), encoding="ascii")
    return path


def binary32(values: Sequence[float]) -> str:
    """Little-endian binary32 numbers as hexadecimal digits."""
    return struct.pack(f"<{len(values)}f", *values).hex()


def binary64(values: Sequence[float]) -> str:
    """Little-endian binary64 numbers as hexadecimal digits."""
    return struct.pack(f"<{len(values)}d", *values).hex()


def as_binary32(value: float) -> float:
    """The binary32 number nearest to a float."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def sparse(counts: Sequence[int]) -> dict[str, list[int]]:
    """A row of counts by its support."""
    ids = [v for v, count in enumerate(counts) if count]
    return {"ids": ids, "counts": [counts[v] for v in ids]}


def fraction(value: Fraction) -> str:
    """A fraction as text, in lowest terms."""
    return f"{value.numerator}/{value.denominator}"


class Numbers:
    """Reproducible numbers that look arbitrary, from the oracle's own generator."""

    def __init__(self, seed: int) -> None:
        self._lanes = self._stream(seed)

    @staticmethod
    def _stream(seed: int) -> Iterator[int]:
        block = 0
        while True:
            yield from philox((block, 0, 0, seed), (0x5EED, 0))
            block += 1

    def below(self, bound: int) -> int:
        """An integer in 0..bound-1 (not quite uniform, which nothing here needs)."""
        return (next(self._lanes) << 32 | next(self._lanes)) % bound

    def real(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * next(self._lanes) / 2**32

    def normal(self) -> float:
        """About a standard normal number."""
        return sum(self.real(0, 1) for _ in range(12)) - 6
