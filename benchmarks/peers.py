"""Other projects' verification and sampling as functions of one call, where they are installed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch

Way = Callable[[], object]


def runs(way: Way | None) -> str | None:
    """None where a peer can be measured here, else why not, in one line."""
    if way is None:
        return "not installed"
    try:
        way()
    except Exception as error:  # whatever another project's code raises on a machine it does not do
        return f"does not run here: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def transformers_verify(target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor) -> Way:
    """transformers' speculative sampling: one request a call, softmax of both models included.

    target: (B, K + 1, V) logits; draft: (B, K, V) logits; tokens: (B, K).
    """
    sample = import_module("transformers.generation.utils")._speculative_sampling
    batch, depth = tokens.shape

    def once() -> list[object]:
        return [
            sample(tokens[row : row + 1], draft[row : row + 1], depth, target[row : row + 1])
            for row in range(batch)
        ]

    return once


def vllm_verify(target: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor) -> Way | None:
    """vLLM's rejection sampling from target logits, the bonus token drawn beside it; or None.

    target: (B, K + 1, V) logits; q: (B, K, V) probabilities; tokens: (B, K).
    """
    if find_spec("vllm") is None:
        return None
    return _prepared(lambda: _vllm_verify(target, q, tokens))


def _vllm_verify(target: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor) -> Way:
    if target.device.type == "cpu":
        _take_cpu_kernels()
    reject = import_module("vllm.v1.sample.rejection_sampler").rejection_sample
    batch, depth = tokens.shape
    size = target.shape[-1]
    names = inspect.signature(reject).parameters
    wants_logits = "target_logits" in names  # older releases take probabilities
    rows = target[:, :depth].reshape(-1, size).contiguous()
    flat_q = q.reshape(-1, size).contiguous()
    flat_tokens = tokens.reshape(-1).to(torch.int32)
    ends = torch.arange(depth, depth * batch + 1, depth, dtype=torch.int32, device=target.device)
    sampling = SimpleNamespace(
        all_greedy=False,
        all_random=True,
        temperature=torch.ones(batch, device=target.device),
        generators={},
    )

    def once() -> object:
        p = target[:, depth].softmax(-1)
        noise = torch.empty_like(p).exponential_()
        bonus = (p / noise).argmax(-1, keepdim=True).to(torch.int32)
        given = rows if wants_logits else rows.softmax(-1)
        numbers = [depth] * batch
        return reject(flat_tokens, numbers, depth, ends, flat_q, given, bonus, sampling)

    return once


def _take_cpu_kernels() -> None:
    """Let vLLM's CPU platform put its own kernels in the place of Triton's, as its workers do."""
    platform: Any = import_module("vllm.platforms").current_platform
    platform.import_kernels()
    replace = getattr(platform, "register_triton_kernel_overrides", None)
    if replace is None:  # before vLLM 0.32
        return
    try:
        replace()
    except AttributeError:
        # It looks at everything in every module, and one of Numba's answers to any name at all. By
        # now all that it needs is imported, so that nothing is while that module is out of sight.
        with _out_of_sight("llvmlite"):
            replace()


@contextmanager
def _out_of_sight(package: str) -> Iterator[None]:
    """Take a package's modules out of ``sys.modules`` for a while."""
    names = [name for name in sys.modules if name.partition(".")[0] == package]
    modules = {name: sys.modules.pop(name) for name in names}
    try:
        yield
    finally:
        sys.modules.update(modules)


def flashinfer_draw(logits: torch.Tensor) -> Way | None:
    """FlashInfer's ``sampling_from_probs`` after torch's softmax, on a GPU; None without it."""
    if find_spec("flashinfer") is None:
        return None
    return _prepared(lambda: _flashinfer_draw(logits))


def _flashinfer_draw(logits: torch.Tensor) -> Way:
    sample = import_module("flashinfer.sampling").sampling_from_probs
    # Named numbers keep it from asking torch's generator for its state, which no capture allows.
    known = inspect.signature(sample).parameters
    given = {name: value for name, value in (("seed", 7), ("offset", 0)) if name in known}
    return lambda: sample(torch.softmax(logits, -1), **given)


def _prepared(make: Callable[[], Way]) -> Way:
    """A way that is made when it is first called, so that what it lacks is found by ``runs``."""
    made: list[Way] = []

    def once() -> object:
        if not made:
            made.append(make())
        return made[0]()

    return once
