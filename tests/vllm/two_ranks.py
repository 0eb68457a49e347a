"""Run in a process of its own: the same seeded requests on one rank and on two, as JSON.

python -m tests.vllm.two_ranks TARGET HOST:PORT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tests.vllm.conftest  # noqa: F401  (the environment, before vLLM)
from tests.vllm.engines import remote_arguments, running, texts


def generate(target: Path, address: str, ranks: int) -> dict[str, Any]:
    from vllm import SamplingParams

    arguments = remote_arguments(address, deadline_ms=20_000, layout="sparse:8")
    with running(target, tensor_parallel_size=ranks, block_size=32, **arguments) as engine:
        requests = [
            SamplingParams(temperature=1.0, max_tokens=24, seed=seed, ignore_eos=True)
            for seed in range(4)
        ]
        got = texts(engine, [(3, 4)] * 4, requests)
        counts = {m.name: m.value for m in engine.get_metrics() if hasattr(m, "value")}
    return {"texts": got, "accepted": counts["vllm:spec_decode_num_accepted_tokens"]}


if __name__ == "__main__":
    print(json.dumps([generate(Path(sys.argv[1]), sys.argv[2], ranks) for ranks in (2, 1)]))
