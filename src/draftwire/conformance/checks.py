"""Which check each kind and op of vector has, and how whole files are checked."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from draftwire.conformance import arithmetic, keyed, laws, transcripts, wire
from draftwire.conformance.vectors import Mismatch, Vector, VectorFile, open_vectors
from draftwire.errors import ConfigurationError, DraftwireError
from draftwire.exact.words import WORD_BITS

Check = Callable[[Vector], None]

LANE_BITS: Final = 32  # of the generator, so of the widest word (A13)

MALFORMED: Final = (
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    struct.error,
)
"""What a check raises for a vector that lacks a field or holds nonsense in one."""

CHECKS: Final[dict[str, dict[str, Check]]] = {
    "quantise": {
        "quantise": arithmetic.check_quantise,
        "allocate": arithmetic.check_allocate,
        "fp32_weights": arithmetic.check_fp32_weights,
        "exp64": arithmetic.check_exp64,
    },
    "words": {
        "philox": arithmetic.check_philox,
        "key": arithmetic.check_key,
        "words": arithmetic.check_words,
    },
    "draw": {
        "below": arithmetic.check_below,
        "locate": arithmetic.check_locate,
        "draw": arithmetic.check_draw,
    },
    "verdicts": {
        "round": arithmetic.check_round,
        "target_only": arithmetic.check_target_only,
    },
    "laws": {"text_law": laws.check_text_law},
    "frames": {"stream": wire.check_stream, "hello": wire.check_hello},
    "transcripts": {
        "drafter": transcripts.check_drafter,
        "limited_drafter": transcripts.check_drafter,
        "verifier": transcripts.check_verifier,
        "key_use": keyed.check_key_use,
        "keyed_drafter": keyed.check_drafter,
        "keyed_verifier": keyed.check_verifier,
    },
}
"""What a vector of each kind and op is checked by."""


@dataclass(slots=True)
class Summary:
    """How many files and vectors were checked, and how many vectors failed."""

    files: int = 0
    vectors: int = 0
    failed: int = 0

    @property
    def conforming(self) -> bool:
        """Whether every vector was met."""
        return not self.failed


def check_files(files: Iterable[Path], report: Callable[[str], None]) -> Summary:
    """Check every vector of every file; failures go to ``report`` line by line.

    A file of a kind that is not known, or that is not whole, raises ConfigurationError; a vector
    that this implementation does not meet is reported and counted.
    """
    summary = Summary()
    for path in files:
        file = open_vectors(path)
        failed = _run_file(file, report)
        summary.files += 1
        summary.vectors += file.count
        summary.failed += failed
        met = file.count - failed
        report(f"{path}: {met} of {file.count} {file.kind} vectors met")
    return summary


def _run_file(file: VectorFile, report: Callable[[str], None]) -> int:
    checks = CHECKS.get(file.kind)
    if checks is None:
        known = ", ".join(CHECKS)
        raise ConfigurationError(f'{file.path}: no checks for kind "{file.kind}" (known: {known})')
    failed = 0
    for vector in file.vectors():
        problem = _problem(file, checks, vector)
        if problem:
            failed += 1
            report(f"{vector['id']} ({vector.get('note', vector['op'])}): {problem}")
    return failed


def _problem(file: VectorFile, checks: dict[str, Check], vector: Vector) -> str | None:
    check = checks.get(vector["op"])
    if check is None:
        raise ConfigurationError(f'{file.path}, {vector["id"]}: no check for op "{vector["op"]}"')
    try:
        if not 1 <= vector.get("bits", WORD_BITS) <= LANE_BITS:
            raise ValueError(f"bits: a word has 1 to {LANE_BITS}")
        check(vector)
    except Mismatch as mismatch:
        return str(mismatch)
    except DraftwireError as error:
        return f"refused here: {error}"
    except MALFORMED as error:
        raise ConfigurationError(
            f"{file.path}, {vector['id']}: is not a whole {vector['op']} vector "
            f"({type(error).__name__}: {error})"
        ) from error
    return None
