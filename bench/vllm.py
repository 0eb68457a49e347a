"""vLLM three ways, turn by turn on the same prompts and seeds: `make vllm-bench`.

    python -m bench.vllm [--quick] [--out FOLDER] [--target FOLDER --drafter FOLDER] [--depth K]

target only; vLLM's own draft_model in the same process (probabilistic); ours with the drafter in a
process of its own over loopback. Each way has its own process, one CPU thread a process, eager.
Runs in vLLM's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from bench.common import Goal, Result

DEPTH, SUPPORT, TEMPERATURE, TOKENS = 5, 32, 0.8, 96
BATCHES = (1, 8)
TARGET_ONLY, COLOCATED, REMOTE, DRAFTER = "target-only", "colocated", "remote", "drafter"
PROMPTS = (
    "def median(values):\n",
    "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def",
    "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser(",
    "for name in sorted(os.listdir(path)):\n    if",
    "    def __repr__(self):\n        return",
    "try:\n    import json\nexcept ImportError:\n",
    "def read(path):\n    with open(path) as stream:\n",
    "if __name__ == '__main__':\n",
)
LEAST_SHARE = 0.95  # of the colocated tokens/s at batch 1


class Child:
    """One way in a process of its own: a line of JSON in, a line of JSON out."""

    def __init__(self, way: str, options: argparse.Namespace, address: str = "") -> None:
        """Start it and wait until it is ready."""
        command = [sys.executable, "-m", "bench.vllm", "--way", way, "--address", address]
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
    name = (
        f"vLLM, {options.target.parent.name}, depth {options.depth}, sparse {SUPPORT}, T ="
        f" {TEMPERATURE}, {tokens} tokens a request, one thread a process"
    )
    result = Result(name)
    drafter = Child(DRAFTER, options)
    ways = {
        TARGET_ONLY: Child(TARGET_ONLY, options),
        COLOCATED: Child(COLOCATED, options),
        REMOTE: Child(REMOTE, options, drafter.ready["address"]),
    }
    try:
        for batch in BATCHES:
            for child in ways.values():
                child.ask(batch=batch, tokens=tokens, seed=99)  # warm-up
            drafter.ask(reset=True)
            found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
            for turn in range(repeats):
                for way, child in ways.items():
                    found[way].append(child.ask(batch=batch, tokens=tokens, seed=turn))
            result.figures[f"batch {batch}"] = _figures(found, drafter.ask(reset=False))
            if batch == 1:
                share = _ratio(found, COLOCATED)
                result.goals.append(
                    Goal("colocated / remote at batch 1", 1 / share, 1 / LEAST_SHARE)
                )
    finally:
        for child in (*ways.values(), drafter):
            child.close()
    return result


def _figures(found: dict[str, list[dict[str, Any]]], drafter: dict[str, Any]) -> dict[str, Any]:
    rates = {way: [run["tokens"] / run["seconds"] for run in runs] for way, runs in found.items()}
    figures: dict[str, Any] = {
        f"{way} tokens/s": round(statistics.median(rate), 1) for way, rate in rates.items()
    }
    figures["remote / colocated"] = round(_ratio(found, COLOCATED), 3)
    figures["remote / target-only"] = round(_ratio(found, TARGET_ONLY), 3)
    for way in (COLOCATED, REMOTE):
        figures[f"{way}: accepted by position"] = _by_position(found[way])
    figures |= _split(found[REMOTE], drafter)
    return figures


def _ratio(found: dict[str, list[dict[str, Any]]], peer: str) -> float:
    """The median over the turns of our tokens/s by the peer's."""
    pairs = zip(found[REMOTE], found[peer], strict=True)
    ratio: float = statistics.median(
        ours["tokens"] / ours["seconds"] * theirs["seconds"] / theirs["tokens"]
        for ours, theirs in pairs
    )
    return ratio


def _by_position(runs: list[dict[str, Any]]) -> list[float]:
    drafts = sum(run["drafts"] for run in runs)
    positions = zip(*(run["positions"] for run in runs), strict=True)
    return [round(sum(accepted) / drafts, 3) for accepted in positions] if drafts else []


def _split(runs: list[dict[str, Any]], drafter: dict[str, Any]) -> dict[str, Any]:
    """Where the wait for proposals goes, in milliseconds a step of the engine."""
    steps = max(sum(run["proposals"] for run in runs), 1)

    def each(seconds: float) -> float:
        return float(round(1000 * seconds / steps, 3))

    total = sum(run["propose"] for run in runs)
    taken = sum(run["taken"] for run in runs)
    audit = sum(run["audit"] for run in runs)
    rest = total - drafter["draft"] - taken
    return {
        "propose, ms a step": each(total),
        "  drafter: its model": each(drafter["model"]),
        "  drafter: quantising, draws, codec": each(drafter["draft"] - drafter["model"]),
        "  verifier: codec and checks": each(taken - audit),
        "  verifier: audit": each(audit),
        "  wire, wake-ups, what is left": each(rest),
        "verification, ms a step": each(sum(run["verify"] for run in runs)),
    }


# the children


def serve_engine(options: argparse.Namespace, out: IO[str]) -> None:
    """Run one engine: generate when asked, and answer with times and counts."""
    from vllm import LLM, SamplingParams

    from draftwire.engines.vllm import repairs

    engine = LLM(
        model=str(options.target),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        generation_config="vllm",
        disable_log_stats=False,
        enable_prefix_caching=False,
        **_way(options),
    )
    repairs.apply()  # of the peer as well, or it would sample at temperatures of chance
    ledger, taken = _watch(engine) if options.way == REMOTE else (None, [0.0])
    _say(out, {"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = list(PROMPTS[: asked["batch"]])
        params = [
            SamplingParams(
                temperature=TEMPERATURE,
                max_tokens=asked["tokens"],
                ignore_eos=True,
                seed=1000 * asked["seed"] + place,
            )
            for place in range(len(prompts))
        ]
        before, began = _counts(engine, ledger, taken), time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        after = _counts(engine, ledger, taken)
        answer = {name: after[name] - before[name] for name in after if name != "positions"}
        answer["positions"] = [
            b - a for a, b in zip(before["positions"], after["positions"], strict=True)
        ]
        answer["tokens"] = sum(len(output.outputs[0].token_ids) for output in outputs)
        _say(out, {**answer, "seconds": seconds})


def _way(options: argparse.Namespace) -> dict[str, Any]:
    from draftwire.engines.vllm.config import PROPOSER, WORKER

    if options.way == COLOCATED:
        speculative = {
            "method": "draft_model",
            "model": str(options.drafter),
            "num_speculative_tokens": options.depth,
            "draft_sample_method": "probabilistic",
        }
        return {"speculative_config": speculative}
    if options.way == REMOTE:
        speculative = {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": options.depth,
        }
        given = {
            "address": options.address,
            "layout": f"sparse:{SUPPORT}",
            "deadline_ms": 10_000,
        }
        return {
            "speculative_config": speculative,
            "worker_cls": WORKER,
            "additional_config": {"draftwire": given},
        }
    return {}


def _watch(engine: Any) -> tuple[Any, list[float]]:
    """Return the ledger, and the seconds spent in taking what the drafter sends, as they grow."""
    from draftwire.session.taking import Taking

    taken = [0.0]
    take = Taking.take

    def timed(self: Taking, received: Any, now: float) -> Any:
        began = time.perf_counter()
        try:
            return take(self, received, now)
        finally:
            taken[0] += time.perf_counter() - began

    Taking.take = timed  # type: ignore[method-assign]
    worker = engine.llm_engine.model_executor.driver_worker.worker
    return worker.model_runner.drafter.ledger, taken


def _counts(engine: Any, ledger: Any, taken: list[float]) -> dict[str, Any]:
    found: dict[str, Any] = {"drafts": 0, "positions": []}
    for metric in engine.get_metrics():
        if metric.name == "vllm:spec_decode_num_drafts":
            found["drafts"] = metric.value
        if metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            found["positions"] = list(metric.values)
    if ledger is not None:
        for name in ("propose", "audit", "verify"):
            found[name] = ledger.tally[f"{name}_seconds"]
        found |= {"taken": taken[0], "proposals": ledger.tally["drafting_steps"]}
    return found


def serve_drafter(options: argparse.Namespace, out: IO[str]) -> None:
    """Run the drafter, and say how long its model and all of its drafting took since a reset."""
    import threading

    from draftwire.drafter.program import DrafterConfig, DrafterProgram
    from draftwire.drafter.serve import DrafterServer
    from draftwire.engines.hf.draft import HfDraftEngine
    from draftwire.transport.tcp import listen

    spent = {"draft": 0.0, "model": 0.0}

    def timed(owner: Any, name: str, key: str) -> None:
        original = getattr(owner, name)

        def wrapper(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*arguments)
            finally:
                spent[key] += time.perf_counter() - began

        setattr(owner, name, wrapper)

    timed(DrafterProgram, "draft", "draft")
    timed(HfDraftEngine, "extend", "model")
    engine = HfDraftEngine.from_folder(options.drafter)
    config = DrafterConfig(max_sessions=16, max_slots=16, max_depth=options.depth)
    program: DrafterProgram[Any] = DrafterProgram(engine, config)
    program.warm_up()
    server = DrafterServer(program, listen("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    _say(out, {"address": str(server.address)})
    for line in sys.stdin:
        if json.loads(line)["reset"]:
            spent.update(dict.fromkeys(spent, 0.0))
        _say(out, dict(spent))
    server.stop()


def _say(out: IO[str], answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark, or be one of its children."""
    parser = argparse.ArgumentParser(prog="python -m bench.vllm", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(".out"))
    parser.add_argument("--target", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.target is None or options.drafter is None:
        from draftwire.engines.hf.loading import embedded_folder

        options.target, options.drafter = embedded_folder("target"), embedded_folder("drafter")
    if options.way:
        (serve_drafter if options.way == DRAFTER else serve_engine)(options, sys.stdout)
        return 0
    from bench.run import table

    result = run(options)
    print(table(result))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "vllm.json").write_text(json.dumps(result.as_dict(), indent=2) + "\n")
    return 0 if all(goal.met for goal in result.goals) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
