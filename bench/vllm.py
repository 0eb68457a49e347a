"""vLLM three ways, turn by turn on the same prompts and seeds: `make vllm-bench`.

    python -m bench.vllm [--quick] [--out FOLDER] [--target FOLDER --drafter FOLDER] [--depth K]
    python -m bench.vllm --gemma [--quick]

target only; vLLM's own draft_model in the same process (probabilistic); ours with the drafter in a
process of its own over loopback. Each way has its own process, one CPU thread a process, eager.
Runs in vLLM's environment.

--gemma: Gemma 3 270M with a drafter of some of its own layers (bench/gemma.py), and a fourth way,
ours with dense q: what a vocabulary of 262,144 ids asks of either layout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import Goal, Result
from bench.vllm_ways import (
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
LEAST_SHARE = 0.95  # of the colocated tokens/s at batch 1


class Child:
    """One way in a process of its own: a line of JSON in, a line of JSON out."""

    def __init__(self, way: str, options: argparse.Namespace, address: str = "") -> None:
        """Start it and wait until it is ready."""
        command = [sys.executable, "-m", "bench.vllm_ways", "--way", way, "--address", address]
        command += ["--target", str(options.target), "--drafter", str(options.drafter)]
        command += ["--depth", str(options.depth)]
        environment = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )
        self.ready = self._answer()

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send a question and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
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
                return answer
        raise RuntimeError("the process ended: see its messages above")


def run(options: argparse.Namespace) -> Result:
    """Measure every way in turn and return what was found."""
    repeats, tokens = (2, 32) if options.quick else (5, TOKENS)
    tokens = options.tokens or tokens
    name = (
        f"vLLM, {options.target.parent.name}, depth {options.depth}, sparse {SUPPORT}, T ="
        f" {TEMPERATURE}, {tokens} tokens a request, one thread a process"
    )
    result = Result(name)
    drafter = Child(DRAFTER, options)
    ways = {way: Child(way, options) for way in (TARGET_ONLY, COLOCATED)}
    for way in (REMOTE, DENSE) if options.gemma else (REMOTE,):
        ways[way] = Child(way, options, drafter.ready["address"])
    try:
        for batch in BATCHES:
            for child in ways.values():
                child.ask(batch=batch, tokens=WARM_UP, seed=99)
            found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
            for turn in range(repeats):
                for way, child in ways.items():
                    drafter.ask(reset=True)
                    answer = child.ask(batch=batch, tokens=tokens, seed=turn)
                    found[way].append(answer | drafter.ask(reset=False))
            result.figures[f"batch {batch}"] = _figures(found, batch)
            if batch == 1:
                share = _ratio(found, REMOTE, COLOCATED)
                result.goals.append(
                    Goal("colocated / remote at batch 1", 1 / share, 1 / LEAST_SHARE)
                )
        result.figures["greedy texts as target-only's"] = _greedy(ways, tokens)
    finally:
        for child in (*ways.values(), drafter):
            child.close()
    return result


def _figures(found: dict[str, list[dict[str, Any]]], batch: int) -> dict[str, Any]:
    rates = {way: [run["tokens"] / run["seconds"] for run in runs] for way, runs in found.items()}
    figures: dict[str, Any] = {
        f"{way} tokens/s": round(statistics.median(rate), 2) for way, rate in rates.items()
    }
    ours = [way for way in found if way in LAYOUTS]
    for way in ours:
        for peer in (COLOCATED, TARGET_ONLY):
            figures[f"{way} / {peer}"] = round(_ratio(found, way, peer), 3)
    for way, runs in found.items():
        drafts = sum(run["drafts"] for run in runs)
        if drafts:
            # beside tokens/s: what chance does in accepting is not in it
            seconds = sum(run["seconds"] for run in runs)
            figures[f"{way}: ms a drafted round"] = round(1000 * batch * seconds / drafts, 1)
            figures[f"{way}: accepted by position"] = _by_position(runs)
    for way in ours:
        figures |= {f"{way}: {name}": value for name, value in _split(found[way]).items()}
    return figures


def _greedy(ways: dict[str, Child], tokens: int) -> dict[str, str]:
    """How many texts at temperature 0 are the target's own, by way."""
    texts = {
        way: child.ask(batch=len(PROMPTS), tokens=tokens, seed=None)["ids"]
        for way, child in ways.items()
    }
    same = {
        way: sum(a == b for a, b in zip(texts[TARGET_ONLY], each, strict=True))
        for way, each in texts.items()
    }
    return {way: f"{count} of {len(PROMPTS)}" for way, count in same.items() if way != TARGET_ONLY}


def _ratio(found: dict[str, list[dict[str, Any]]], way: str, peer: str) -> float:
    """The median over the turns of one way's tokens/s by the peer's."""
    ratio: float = statistics.median(
        ours["tokens"] / ours["seconds"] * theirs["seconds"] / theirs["tokens"]
        for ours, theirs in zip(found[way], found[peer], strict=True)
    )
    return ratio


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
    parser = argparse.ArgumentParser(prog="python -m bench.vllm", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(".out"))
    parser.add_argument("--target", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--tokens", type=int, help="of each request")
    parser.add_argument("--gemma", action="store_true")
    options = parser.parse_args(arguments)
    if options.gemma and options.target is None:
        from bench.gemma import pair

        options.target, options.drafter = pair(options.out / "gemma-3-270m")
    if options.target is None or options.drafter is None:
        from draftwire.engines.hf.loading import embedded_folder

        options.target, options.drafter = embedded_folder("target"), embedded_folder("drafter")
    from bench.run import table

    result = run(options)
    print(table(result))
    options.out.mkdir(parents=True, exist_ok=True)
    name = "vllm-gemma.json" if options.gemma else "vllm.json"
    (options.out / name).write_text(json.dumps(result.as_dict(), indent=2) + "\n")
    return 0 if all(goal.met for goal in result.goals) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
