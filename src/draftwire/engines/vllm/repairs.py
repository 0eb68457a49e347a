"""Faults of vLLM 0.32.0 on the CPU, each worked around only where it is found to be there.

Each is looked for by calling the function; a release without the fault is left as it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

_PROBES: Final = 8


def apply() -> tuple[str, ...]:
    """Work around what is broken in this process; returns the names of the faults found.

    May be called any number of times: a fault that is worked around is not found again.
    """
    from vllm.v1.sample import rejection_sampler

    found = []
    if expansion_is_lost():
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
        found.append("expansion")
    if empty_top_k_fails():
        rejection_sampler.apply_top_k_top_p = _tolerant(rejection_sampler.apply_top_k_top_p)
        found.append("empty top-k")
    return (*found, *apply_before_start())


def apply_before_start() -> tuple[str, ...]:
    """As :func:`apply`, for what has to be repaired before an engine starts; imports nothing."""
    if not scan_fails():
        return ()
    wrapper = type(sys.modules["llvmlite.binding.ffi"].lib)
    original = wrapper.__getattr__

    def function_named(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return original(self, name)

    wrapper.__getattr__ = function_named
    return ("scan",)


def scan_fails() -> bool:
    """Whether vLLM's search for kernels in all loaded modules would stumble over llvmlite.

    It reads the __dict__ of every module's attributes, and llvmlite's library (numba has loaded it,
    once a first engine has run here) makes a function of any name it is asked for, that one too.
    """
    binding = sys.modules.get("llvmlite.binding.ffi")
    return binding is not None and not isinstance(getattr(binding.lib, "__dict__", {}), dict)


def expansion_is_lost() -> bool:
    """Whether a value a request does not reach the request's rows.

    The CPU kernel behind it works on a converted copy of its output unless that is int64, and the
    copy is dropped: temperature, top_k and top_p of speculated rows are uninitialised memory. What
    such memory holds is chance, so several values are tried.
    """
    import torch
    from vllm.v1.sample import rejection_sampler

    counts = torch.tensor([1, 3], dtype=torch.int32)
    for probe in range(_PROBES):
        values = torch.tensor([0.25 + probe, 7.5 + probe])
        expanded = rejection_sampler.expand_batch_to_tokens(values, counts, 3)
        if expanded.tolist() != [0.25 + probe, 7.5 + probe, 7.5 + probe]:
            return True
    return False


def empty_top_k_fails() -> bool:
    """Whether top-k of no rows, a step in which no request has a draft, raises."""
    import torch
    from vllm.v1.sample import rejection_sampler

    rows, top_k = torch.empty((0, 8)), torch.empty(0, dtype=torch.int32)
    try:
        rejection_sampler.apply_top_k_top_p(rows, top_k, None)
    except (RuntimeError, IndexError):
        return True
    return False


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Repeat the value of each request over its rows, one value replaced by another on the way.

    x: (B,). cu_num_tokens: (B,) rows up to and with each request. Returns (num_tokens,) like x.
    """
    import torch

    counts = torch.diff(cu_num_tokens.long(), prepend=cu_num_tokens.new_zeros(1).long())
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(values, counts, output_size=num_tokens)


def _tolerant(top_k_top_p: Any) -> Any:
    def apply_top_k_top_p(
        logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
    ) -> torch.Tensor:
        if logits.shape[0] == 0:
            return logits
        processed: torch.Tensor = top_k_top_p(logits, k, p)
        return processed

    return apply_top_k_top_p
