"""``make bench``: every measurement in turn, one table, one JSON, and whether the goals are met.

    python -m benchmarks.run [--quick] [--out FOLDER] [--only NAME]
                             [--target FOLDER --drafter FOLDER]

Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before NumPy and torch are imported: every measurement is of one thread a process.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import (
    block_drafter,
    depth,
    distance,
    draft_throughput,
    loopback,
    mirror,
    pair,
    quantisation,
    reply_validation,
    verification,
)
from benchmarks.common import Result, table
from draftwire.engines.hf import embedded_folder

LIBRARIES = (
    "draftwire",
    "numpy",
    "numba",
    "google-crc32c",
    "torch",
    "transformers",
    "msgspec",
    "pyzmq",
)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks and return the exit code."""
    options = _parse(arguments)
    command = "python -m benchmarks.run " + " ".join(arguments)
    machine = _machine()
    print(f"$ {command.strip()}\n{_line(machine)}\n", flush=True)
    results = []
    for name, measure in _benchmarks(options).items():
        if options.only in (None, name):
            print(f"{name} ...", file=sys.stderr, flush=True)
            results.append(measure())
            print(table(results[-1]), flush=True)
    missed = [goal for result in results for goal in result.goals if not goal.met]
    _write(options.out, command, machine, results)
    print(f"{len(missed)} goal(s) missed" if missed else "every goal met")
    return 1 if missed else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--out", type=Path, default=Path(".out"), help="where bench.json goes")
    parser.add_argument("--only", help="one benchmark by name")
    parser.add_argument("--target", type=Path, help="another target than the embedded one")
    parser.add_argument("--drafter", type=Path, help="its drafter")
    return parser.parse_args(arguments)


def _benchmarks(options: argparse.Namespace) -> dict[str, Callable[[], Result]]:
    quick: bool = options.quick
    target = options.target or embedded_folder("target")
    drafter = options.drafter or embedded_folder("drafter")
    return {
        "quantisation": lambda: quantisation.run(quick),
        "reply_validation": lambda: reply_validation.run(quick),
        "verification": lambda: verification.run(quick),
        "loopback": lambda: loopback.run(quick),
        "distance": lambda: distance.run(quick, target, drafter),
        "draft_throughput": lambda: draft_throughput.run(quick, drafter),
        "pair": lambda: pair.run(quick, target, drafter),
        "block_drafter": lambda: block_drafter.run(quick),
        "depth": lambda: depth.run(quick, target, drafter),
        "mirror": lambda: mirror.run(quick, target, drafter),
    }


def _machine() -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "versions": versions,
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _line(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cpus']} CPUs, load {machine['load'][0]}, Python"
        f" {machine['python']}\n{versions}"
    )


def _write(out: Path, command: str, machine: dict[str, Any], results: list[Result]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "command": command.strip(),
        "machine": machine,
        "results": [result.as_dict() for result in results],
    }
    (out / "bench.json").write_text(json.dumps(document, indent=2) + "\n")
    print(f"written: {out / 'bench.json'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
