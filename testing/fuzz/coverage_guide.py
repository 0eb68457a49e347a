"""``make fuzz-guided``: bytes chosen by coverage (atheris, libFuzzer), held to the same sentences.

    python -m testing.fuzz.coverage_guide [--minutes M] [--corpus FOLDER] [--seed S]
    python -m testing.fuzz.coverage_guide FILE...

With files, each is run once and nothing is looked for. The loops that Numba compiles run in the
interpreter here, so that their branches are seen too; ``make fuzz`` runs the compiled ones. A
finding ends the run: its bytes and its traceback are kept in the corpus folder's ``findings``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["NUMBA_DISABLE_JIT"] = "1"

LARGEST = 4096  # bytes of an input
SEEN = [
    "draftwire.wire",
    "draftwire.session",
    "draftwire.exact",
    "draftwire.drafter",
    "draftwire.kernels",
    "draftwire.transport",
    "draftwire.conformance",
]


def main(arguments: Sequence[str]) -> int:
    """Run files once, or fuzz; does not come back from fuzzing."""
    parser = argparse.ArgumentParser(
        prog="python -m testing.fuzz.coverage_guide", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--corpus", type=Path, default=Path(".out/fuzz"))
    parser.add_argument("--seed", type=int, default=0, help="of libFuzzer; 0 = another each time")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    if options.files:
        from testing.fuzz import targets

        for path in options.files:
            targets.run(path.read_bytes())
            print(f"{path}: nothing")
        return 0
    return fuzz(options.minutes, options.corpus, options.seed)


def fuzz(minutes: float, folder: Path, seed: int) -> int:
    """Let coverage look for inputs, from the seeds and what earlier runs have kept."""
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        print("atheris is not installed: make fuzz-guided does that", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=SEEN):
        targets = importlib.import_module("testing.fuzz.targets")
    corpus, findings = folder / "corpus", folder / "findings"
    for each in (corpus, findings):
        each.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(targets.seeds()):
        (corpus / f"seed-{number:04d}").write_bytes(data)
    atheris.Setup(
        [
            "testing.fuzz.coverage_guide",
            str(corpus),
            f"-max_total_time={int(minutes * 60)}",
            f"-max_len={LARGEST}",
            f"-seed={seed}",
            f"-artifact_prefix={findings}/",
            "-timeout=20",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ],
        targets.run,
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
