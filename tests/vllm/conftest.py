"""One process, no network: set before vLLM is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from draftwire.engines.hf.loader import embedded_folder
from draftwire.engines.vllm.speculation import SpeculationState, VerifyRequest
from tests.vllm.engines import remote_arguments, runner_of, running, serving, toy_drafter
from tests.vllm.models import tiny_folder
from tests.vllm.proxies import Line
from tests.vllm.reference import Reference, Text


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pair", type=Path, help="folder with target/ and drafter/, not the embedded")


@pytest.fixture(scope="session")
def pair(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """The embedded target and drafter."""
    given: Path | None = request.config.getoption("--pair")
    if given is not None:
        return given / "target", given / "drafter"
    return embedded_folder("target"), embedded_folder("drafter")


PADDING = -1  # vLLM's, in the place of a token


@dataclass
class Bench:
    """An engine that drafts remotely, the line to its drafter, and what its target's law is."""

    engine: Any
    line: Line
    reference: Reference
    folder: Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of eight words."""
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "target", seed=1)


@pytest.fixture(scope="session")
def bench(tiny: Path) -> Iterator[Bench]:
    """One engine for many tests: starting one costs more than most of them.

    Its steps take fewer tokens than its requests want (drafts are cut off, prompts come in chunks),
    and its cache holds fewer blocks (requests are preempted).
    """
    with (
        serving(toy_drafter(tiny)) as address,
        Line(address) as line,
        running(
            tiny,
            **remote_arguments(line.address, deadline_ms=20_000, layout="sparse:8", breaker=False),
            structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
            block_size=32,
            num_gpu_blocks_override=40,
            max_num_batched_tokens=100,
            max_num_seqs=96,
        ) as engine,
    ):
        yield Bench(engine, line, Reference(tiny), tiny)


@dataclass
class Judged:
    """One row of p that a token was drawn or judged with."""

    params: Any
    prompt: Text
    output: Text
    drafts_before: int
    scores: np.ndarray


@pytest.fixture
def record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Judged]:
    """Keep every row that is judged, with the request and the text it stands for.

    Not those behind a -1: vLLM's scheduler fills up with it the drafts that a grammar forbids, and
    a request that is taken up again may hold it where tokens were only foreseen. There is no p of
    such a text, and no draft of ours is judged there: it ends at the first id that is not its own.
    """
    kept: list[Judged] = []
    verify_step = SpeculationState.verify_step
    runner = runner_of(bench.engine)

    def keeping(
        self: SpeculationState, scores: Any, requests: Sequence[VerifyRequest]
    ) -> list[tuple[int, ...]]:
        for each in requests:
            name = next(key for key, value in self.requests.items() if value is each.active)
            state = runner.requests[name]
            prompt, output = tuple(state.prompt_token_ids), tuple(state.output_token_ids)
            for row in range(len(each.scheduled) + 1):
                text = (*output, *each.scheduled[:row])
                if PADDING in text:
                    break
                p = scores[each.first_row + row].numpy().copy()
                kept.append(Judged(state.sampling_params, prompt, text, row, p))
        return verify_step(self, scores, requests)

    monkeypatch.setattr(SpeculationState, "verify_step", keeping)
    return kept
