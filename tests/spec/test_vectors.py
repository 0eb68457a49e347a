"""The shipped vectors are what the oracle says today: writing them again changes no byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec.generators.vectors.__main__ import KINDS
from spec.generators.vectors.form import write

SHIPPED = Path(__file__).parents[2] / "spec" / "vectors"


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_the_oracles(kind: str, tmp_path: Path) -> None:
    written = write(tmp_path, kind, KINDS[kind]())
    assert written.read_bytes() == (SHIPPED / f"{kind}.jsonl").read_bytes()
