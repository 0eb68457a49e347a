"""vLLM in this process, and drafters it can reach."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf.identity import real_vocabulary, tokenizer_hash
from draftwire.engines.hf.loader import load_tokenizer
from draftwire.engines.vllm.config import PROPOSER, WORKER
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address
from draftwire.wire.identity import IdMap
from testing.harness.servers import serving as on_loopback
from testing.toys.models import ToyDrafter, mixed

DEPTH = 3


def toy_drafter(folder: Path, *, salt: int = 5) -> ToyDrafter:
    """A drafter that costs nothing and knows nothing of the target: q is far from any p."""
    tokenizer = load_tokenizer(folder)
    size = real_vocabulary(tokenizer, 1 << 24)
    return ToyDrafter(
        mixed(size, salt, sharpness=1.0),
        size,
        tokenizer_hash=tokenizer_hash(tokenizer),
        id_map_hash=IdMap.native(size).hash(),
    )


@contextmanager
def serving(
    engine: Any, *, sessions: int = 512, port: int = 0, security: Security | None = None
) -> Iterator[Address]:
    """Serve a draft engine on loopback TCP in a thread of this process."""
    config = DrafterConfig(max_sessions=sessions, max_slots=sessions, max_batch=sessions)
    key = security.secret if isinstance(security, PresharedKey) else b""
    program: DrafterProgram[Any] = DrafterProgram(engine, config, key=key)
    with on_loopback(program, security, Address("127.0.0.1", port)) as server:
        yield server.address


def engine_arguments(model: Path, **more: Any) -> dict[str, Any]:
    """What every engine of these tests is made with."""
    return {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 64,
        "max_num_seqs": 256,
        "seed": 0,
        "disable_log_stats": False,
        "generation_config": "vllm",
        **more,
    }


def remote_arguments(
    address: Address | str, *, depth: int = DEPTH, **options: Any
) -> dict[str, Any]:
    """The flags a user adds, as arguments of LLM."""
    speculative = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": depth}
    return {
        "speculative_config": speculative,
        "worker_cls": WORKER,
        "additional_config": {"draftwire": {"address": str(address), **options}},
    }


@contextmanager
def running(model: Path, **more: Any) -> Iterator[Any]:
    """Yield an LLM in this process, and free it afterwards."""
    from vllm import LLM

    engine = LLM(**engine_arguments(model, **more))
    try:
        yield engine
    finally:
        engine.llm_engine.engine_core.shutdown()
        del engine
        gc.collect()


def runner_of(engine: Any) -> Any:
    """The model runner of an LLM in this process."""
    return engine.llm_engine.model_executor.driver_worker.worker.model_runner


def speculation_of(engine: Any) -> Any:
    """The speculation of an LLM that drafts remotely."""
    return runner_of(engine).drafter.speculation


def texts(engine: Any, prompts: Sequence[Sequence[int]], parameters: Any) -> list[tuple[int, ...]]:
    """Generate, and return the ids of each prompt's first output."""
    inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    outputs = engine.generate(inputs, parameters, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


torch.set_num_threads(1)
