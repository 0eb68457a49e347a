"""One process, no network: set before vLLM is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from draftwire.engines.hf.loading import embedded_folder
from tests_vllm.engines import remote_arguments, running, serving, toy_drafter
from tests_vllm.models import tiny_folder
from tests_vllm.proxies import Line
from tests_vllm.reference import Reference


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pair", type=Path, help="folder with target/ and drafter/, not the embedded")


@pytest.fixture(scope="session")
def pair(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """The embedded target and drafter."""
    given: Path | None = request.config.getoption("--pair")
    if given is not None:
        return given / "target", given / "drafter"
    return embedded_folder("target"), embedded_folder("drafter")


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
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "target", 8, seed=1)


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
            **remote_arguments(line.address, deadline_ms=20_000, layout="sparse:8"),
            block_size=32,
            num_gpu_blocks_override=40,
            max_num_batched_tokens=100,
            max_num_seqs=96,
        ) as engine,
    ):
        yield Bench(engine, line, Reference(tiny), tiny)
