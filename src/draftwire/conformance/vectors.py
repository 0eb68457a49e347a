"""Vector files: a header line, then one JSON object a line (spec/conformance.md)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from draftwire.errors import ConfigurationError

FORMAT: Final = "draftwire-vectors"
VERSION: Final = 1
MAX_LINE_BYTES: Final = 1 << 24

Vector = dict[str, Any]


class Mismatch(Exception):
    """This implementation says something else than the vector; the message says what."""


@dataclass(frozen=True, slots=True)
class VectorFile:
    """A file whose header has been read; ``count`` vectors of one ``kind`` are to follow it."""

    path: Path
    kind: str
    count: int

    def vectors(self) -> Iterator[Vector]:
        """Yield the vectors; a line that is none, or too few or too many, is refused."""
        found = 0
        for number, vector in _objects(self.path):
            if number == 1:
                continue
            if not isinstance(vector.get("id"), str) or not isinstance(vector.get("op"), str):
                raise _refusal(self.path, number, 'a vector needs an "id" and an "op"')
            found += 1
            yield vector
        if found != self.count:
            raise ConfigurationError(
                f"{self.path}: {found} vectors where its header says {self.count}; is it whole?"
            )


def open_vectors(path: Path) -> VectorFile:
    """Read the header of a vector file. Errors: ConfigurationError that says what to do."""
    number, header = next(_objects(path), (0, {}))
    if number != 1 or header.get("format") != FORMAT:
        raise ConfigurationError(
            f'{path}: its first line must be a header with "format": "{FORMAT}"'
        )
    if header.get("version") != VERSION:
        raise ConfigurationError(
            f"{path}: format version {header.get('version')}, this program reads {VERSION}"
        )
    kind, count = header.get("kind"), header.get("count")
    if not isinstance(kind, str) or not isinstance(count, int):
        raise ConfigurationError(f'{path}: its header needs a "kind" and a "count"')
    return VectorFile(path, kind, count)


def _objects(path: Path) -> Iterator[tuple[int, Vector]]:
    try:
        with path.open("rb") as lines:
            number = 0
            while line := lines.readline(MAX_LINE_BYTES + 1):
                number += 1
                yield number, _object(path, number, line)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None


def _object(path: Path, number: int, line: bytes) -> Vector:
    if len(line) > MAX_LINE_BYTES:
        raise _refusal(path, number, f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, number, f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise _refusal(path, number, "is not a JSON object")
    return value


def _refusal(path: Path, number: int, message: str) -> ConfigurationError:
    return ConfigurationError(f"{path}, line {number}: {message}")


def expect(what: str, found: object, expected: object) -> None:
    """Raise Mismatch unless the two are equal."""
    if found != expected:
        raise Mismatch(f"{what}: {_shown(found)} here, {_shown(expected)} in the vector")


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 200 else text[:200] + "..."


def binary32(digits: str) -> list[float]:
    """Numbers from the hexadecimal digits of their little-endian binary32 encoding."""
    data = bytes.fromhex(digits)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def binary64(digits: str) -> list[float]:
    """Numbers from the hexadecimal digits of their little-endian binary64 encoding."""
    data = bytes.fromhex(digits)
    return list(struct.unpack(f"<{len(data) // 8}d", data))


class Words:
    """The words of a vector, counted as they are read; reading past them is a mismatch."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = words
        self.read = 0

    def __iter__(self) -> Words:
        """Itself."""
        return self

    def __next__(self) -> int:
        """The next word."""
        if self.read == len(self._words):
            raise Mismatch(f"more than the {self.read} words of the vector were asked for")
        self.read += 1
        return self._words[self.read - 1]
