"""Write ``spec/vectors/*.jsonl`` from the oracle alone; the same bytes every time.

python -m spec.generators.vectors [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from spec.generators.vectors import (
    arithmetic,
    drafters,
    frames,
    keyed,
    limited,
    mirrored,
    orders,
    refusals,
    states,
    stopped,
    verdicts,
    verifiers,
    words,
)
from spec.generators.vectors.form import Vector, write

KINDS: dict[str, Callable[[], Iterable[Vector]]] = {
    "quantise": arithmetic.vectors,
    "words": words.keyed,
    "draw": words.decided,
    "verdicts": verdicts.rounds,
    "laws": verdicts.texts,
    "frames": lambda: chain(
        frames.good(),
        frames.bad_frames(),
        frames.hellos(),
        refusals.vectors(),
        orders.vectors(),
        mirrored.frames(),
        stopped.frames(),
        states.frames(),
    ),
    "transcripts": lambda: chain(
        drafters.drafters(), verifiers.vectors(), keyed.vectors(), limited.vectors()
    ),
}


def main(folder: Path) -> None:
    """Write every kind into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, vectors in KINDS.items():
        path = write(folder, kind, vectors())
        print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "vectors")
