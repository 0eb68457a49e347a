"""``make faults``: the matrix, real processes, and stalls; a table, JSON, and a non-zero exit.

    python -m testing.faults.run [--quick] [--only PATTERN] [--jobs 2] [--accept]

--accept writes down what was counted, for a reader to judge: see ``expected.json`` in the diff.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from draftwire.rows.prepare import prepare
from draftwire.wire.registry import WireVersion
from testing.faults import matrix, processes, real, stall, unauthenticated
from testing.faults.matrix import EXPECTED, FAULTS, Cell
from testing.faults.real import Ran
from testing.faults.scene import Moment
from testing.faults.stall import Stalls

OUT: Final = Path(".out/faults.json")
LEGEND: Final = """same  the text is the one without the fault, token by token
law   rounds were lost: the law of a small text, enumerated over every word, is the target's;
      in every run of it the fault strikes, and costs what the table says
.     does not apply (why: below)"""


def run_named(index: int, law: bool) -> Cell:
    """Run one cell by its place; the body of a child's task."""
    fault, moment, version = list(matrix.cells())[index]
    return matrix.run_cell(fault, moment, version, law=law)


def run_cells(only: str, jobs: int, *, law: bool) -> list[Cell]:
    """Run the cells whose fault's name matches, some at a time."""
    matrix.quiet()
    prepare()
    chosen = [i for i, (fault, _, _) in enumerate(matrix.cells()) if re.search(only, fault.name)]
    with ProcessPoolExecutor(jobs, mp_context=processes.FORK) as pool:
        return list(pool.map(run_named, chosen, [law] * len(chosen), chunksize=4))


def table(cells: Sequence[Cell], version: WireVersion) -> Iterator[str]:
    """One version's table: a fault a line, a state a column."""
    moments = list(Moment)
    yield f"wire {version.name.lower()}"
    for number, moment in enumerate(moments, 1):
        yield f"  {number:2}  {moment.value}"
    yield f"{'':42}" + "".join(f"{number:>9}" for number in range(1, len(moments) + 1))
    rows: dict[str, dict[Moment, Cell]] = {}
    for cell in cells:
        if cell.version is version:
            rows.setdefault(cell.fault, {})[cell.moment] = cell
    for name, row in rows.items():
        yield f"{name:42}" + "".join(f"{row[moment].sign:>9}" for moment in moments)


def counted(cells: Sequence[Cell]) -> Iterator[str]:
    """What each fault was counted as, over all states and both versions."""
    reasons: dict[str, set[str]] = {}
    for cell in cells:
        found = reasons.setdefault(cell.fault, set())
        for outcome in cell.outcomes:
            named = (part for part in outcome.split(", ") if " by request " not in part)
            parts = (part.rsplit(" ", 1) for part in named)
            found |= {part[0] for part in parts if len(part) == 2 and part[1].isdigit()}
    for name, found in reasons.items():
        yield f"  {name}: {', '.join(sorted(found)) or 'nothing is lost'}"


def inapplicable(cells: Sequence[Cell]) -> Iterator[str]:
    """Why cells do not apply."""
    why: dict[str, set[str]] = {}
    for cell in cells:
        if cell.why_not:
            why.setdefault(cell.why_not, set()).add(cell.fault)
    for reason, names in why.items():
        yield f"  {reason}: {', '.join(sorted(names))}"


def run_real() -> Iterator[Ran]:
    """Run and print what needs real processes."""
    print("real processes and sockets, greedy text: as the target alone makes it")
    for fault in (*real.FAULTS, *unauthenticated.FAULTS):
        ran = fault()
        print(ran.line(), flush=True)
        yield ran
    print()


def run_stalls(rounds: int) -> Iterator[Stalls]:
    """Measure and print how long the affected rounds take."""
    print("a round whose drafter dies: p99 at most its deadline and 10%")
    for how in ("killed", "stopped"):
        stalls = stall.measure(how, rounds)
        print(stalls.line(), flush=True)
        yield stalls
    print()


def main() -> int:
    """Run, print, write the JSON; returns the exit code."""
    parser = argparse.ArgumentParser(prog="testing.faults.run")
    parser.add_argument("--quick", action="store_true", help="without the enumerated laws")
    parser.add_argument("--only", default="", help="faults whose name matches this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--accept", action="store_true", help="write down what was counted")
    arguments = parser.parse_args()
    began = time.perf_counter()
    cells = run_cells(arguments.only, arguments.jobs, law=not arguments.quick)
    if arguments.accept:
        EXPECTED.write_text(json.dumps(matrix.as_expected(cells), indent=1) + "\n")
    print(f"{len(FAULTS)} faults, {len(Moment)} states\n\n{LEGEND}\n")
    for version in (WireVersion.V2, WireVersion.V1):
        print("\n".join(table(cells, version)), end="\n\n")
    print("counted as\n" + "\n".join(counted(cells)), end="\n\n")
    print("does not apply\n" + "\n".join(inapplicable(cells)), end="\n\n")
    applied = [cell for cell in cells if not cell.why_not]
    failed = [cell for cell in applied if cell.wrong]
    for cell in failed:
        for what in cell.wrong:
            print(f"FAIL {cell.version.name} {cell.fault} / {cell.moment.value}: {what}")
    rans = [] if arguments.only else list(run_real())
    stalls = [] if arguments.only else list(run_stalls(20 if arguments.quick else 100))
    runs = sum(len(names) for cell in applied for names in cell.outcomes.values())
    took = time.perf_counter() - began
    print(
        f"{len(applied)} cells in {runs} runs, laws in {sum(cell.runs for cell in applied)} more,"
        f" {len(failed)} failed;"
        f" {len(cells) - len(applied)} do not apply; {took:.0f} s"
    )
    OUT.parent.mkdir(exist_ok=True)
    out = {
        "cells": [cell.as_dict() for cell in cells],
        "processes": [ran.as_dict() for ran in rans],
        "stalls": [each.as_dict() for each in stalls],
    }
    OUT.write_text(json.dumps(out, indent=1) + "\n")
    held = all(each.met for each in stalls) and not any(ran.wrong for ran in rans)
    return 0 if held and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
