"""The ways of ``benchmarks.vllm``, each a process: lines of JSON in, lines of JSON out."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

SUPPORT, TEMPERATURE = 32, 0.8
TARGET_ONLY, COLOCATED, REMOTE, DRAFTER = "target-only", "colocated", "remote", "drafter"
DENSE = "remote, dense"
LAYOUTS = {REMOTE: f"sparse:{SUPPORT}", DENSE: "dense"}
LONGEST, KV_BYTES = 512, 384 << 20  # tokens of a text; enough for all of both models' layers
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


def serve_engine(options: argparse.Namespace, out: IO[str]) -> None:
    """Run one engine: generate when asked, and answer with times and counts."""
    from vllm import LLM, SamplingParams

    from draftwire.engines.vllm import repairs

    first = sys.stdin.readline()
    if not first:  # ended before its turn
        return
    options.address = json.loads(first)["address"]
    engine = LLM(
        model=str(options.target),
        dtype="float32",
        enforce_eager=True,
        max_model_len=LONGEST,
        max_num_seqs=len(PROMPTS),
        max_num_batched_tokens=LONGEST * 2,
        kv_cache_memory_bytes=KV_BYTES,
        disable_hybrid_kv_cache_manager=True,  # its draft_model takes layers of one kind only
        generation_config="vllm",
        disable_log_stats=False,
        enable_prefix_caching=False,
        **_way(options),
    )
    repairs.apply()  # of the peer as well, or it would sample at temperatures of chance
    speculation, taken = _watch(engine) if options.way in LAYOUTS else (None, [0.0])
    prompts_of = _prompts(engine)
    _say(out, {"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        prompts, seed = prompts_of[: asked["batch"]], asked["seed"]
        params = [
            SamplingParams(
                temperature=0.0 if seed is None else TEMPERATURE,
                max_tokens=asked["tokens"],
                ignore_eos=True,
                seed=None if seed is None else 1000 * seed + place,
            )
            for place in range(len(prompts))
        ]
        before, began = _counts(engine, speculation, taken), time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        after = _counts(engine, speculation, taken)
        answer = {name: after[name] - before[name] for name in after if name != "positions"}
        answer["positions"] = [
            b - a for a, b in zip(before["positions"], after["positions"], strict=True)
        ]
        answer["ids"] = [list(output.outputs[0].token_ids) for output in outputs]
        answer["tokens"] = sum(map(len, answer["ids"]))
        _say(out, {**answer, "seconds": seconds})


def _prompts(engine: Any) -> list[Any]:
    """Return the prompts as ids, after the token that begins a text where the model has one.

    Some tokenizers leave it out, and a model that has never seen a text without it writes nonsense.
    """
    tokenizer = engine.get_tokenizer()
    first = tokenizer.bos_token_id
    ids = [list(tokenizer.encode(text)) for text in PROMPTS]
    begun = [each if first in (None, each[0]) else [first, *each] for each in ids]
    return [{"prompt_token_ids": each} for each in begun]


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
    if options.way in LAYOUTS:
        speculative = {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": options.depth,
        }
        given = {
            "address": options.address,
            "layout": LAYOUTS[options.way],
            "deadline_ms": 10_000,
        }
        return {
            "speculative_config": speculative,
            "worker_cls": WORKER,
            "additional_config": {"draftwire": given},
        }
    return {}


def _watch(engine: Any) -> tuple[Any, list[float]]:
    """Return the speculation state, and the growing seconds spent on what the drafter sends."""
    from draftwire.session.verifier_session import VerifierSession

    taken = [0.0]
    take = VerifierSession.take

    def timed(self: VerifierSession, received: Any, now: float) -> Any:
        began = time.perf_counter()
        try:
            return take(self, received, now)
        finally:
            taken[0] += time.perf_counter() - began

    VerifierSession.take = timed  # type: ignore[method-assign]
    worker = engine.llm_engine.model_executor.driver_worker.worker
    return worker.model_runner.drafter.speculation, taken


def _counts(engine: Any, speculation: Any, taken: list[float]) -> dict[str, Any]:
    found: dict[str, Any] = {"drafts": 0, "positions": []}
    for metric in engine.get_metrics():
        if metric.name == "vllm:spec_decode_num_drafts":
            found["drafts"] = metric.value
        if metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            found["positions"] = list(metric.values)
    if speculation is not None:
        for name in ("propose", "audit", "verify"):
            found[name] = speculation.metrics[f"{name}_seconds"]
        found |= {"taken": taken[0], "proposals": speculation.metrics["drafting_steps"]}
        misses = speculation.metrics.labelled("misses")
        found |= {"received": speculation.metrics["received_bytes"], "misses": sum(misses.values())}
    return found


def serve_drafter(options: argparse.Namespace, out: IO[str]) -> None:
    """Run the drafter, and say how long its model and all of its drafting took since a reset."""
    from draftwire.drafter.program import DrafterConfig, DrafterProgram
    from draftwire.engines.hf.draft import HfDraftEngine
    from testing.harness.servers import serving

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

    if not sys.stdin.readline():
        return
    timed(DrafterProgram, "draft", "draft")
    timed(HfDraftEngine, "forward", "model")
    engine = HfDraftEngine.from_folder(options.drafter)
    config = DrafterConfig(max_sessions=16, max_slots=16, max_depth=options.depth)
    program: DrafterProgram[Any] = DrafterProgram(engine, config)
    with serving(program) as server:
        _say(out, {"address": str(server.address)})
        for line in sys.stdin:
            if json.loads(line)["reset"]:
                spent.update(dict.fromkeys(spent, 0.0))
            _say(out, dict(spent))


def _say(out: IO[str], answer: dict[str, Any]) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 * 1.024  # KiB to GB
    out.write(json.dumps({**answer, "memory": memory}) + "\n")
    out.flush()


def main(arguments: Sequence[str]) -> None:
    """Be one way until there are no more questions."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_ways", description=__doc__)
    parser.add_argument("--way", required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--depth", type=int, required=True)
    options = parser.parse_args(arguments)
    try:
        (serve_drafter if options.way == DRAFTER else serve_engine)(options, sys.stdout)
    except Exception as error:
        traceback.print_exc()
        first = (str(error) or "no message").strip().splitlines()[0]
        _say(sys.stdout, {"refused": f"{type(error).__name__}: {first}"})
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
