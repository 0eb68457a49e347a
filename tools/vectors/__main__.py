"""Write ``vectors/*.jsonl`` from the oracle alone; the same bytes every time.

python -m tools.vectors [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.vectors import arithmetic, verdicts, words
from tools.vectors.form import write

KINDS = {
    "quantise": arithmetic.vectors,
    "words": words.keyed,
    "draw": words.decided,
    "verdicts": verdicts.rounds,
    "laws": verdicts.texts,
}


def main(folder: Path) -> None:
    """Write every kind into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, vectors in KINDS.items():
        path = write(folder, kind, vectors())
        print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "vectors")
