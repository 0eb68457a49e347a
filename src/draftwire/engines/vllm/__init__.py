"""vLLM as target: speculation with a remote drafter, through vLLM's own extension points.

::

    vllm serve MODEL \\
      --speculative-config '{"method": "custom_class", "num_speculative_tokens": 5,
                             "model": "draftwire.engines.vllm.Proposer"}' \\
      --worker-cls draftwire.engines.vllm.Worker

``Proposer`` and ``Worker`` are imported when they are asked for: this package itself imports
neither vLLM nor torch, so that its entry point costs nothing where it is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwire.engines.vllm.proposer import Proposer
    from draftwire.engines.vllm.worker import Worker

__all__ = ["Proposer", "Worker"]


def __getattr__(name: str) -> Any:
    if name == "Proposer":
        from draftwire.engines.vllm.proposer import Proposer

        return Proposer
    if name == "Worker":
        from draftwire.engines.vllm.worker import Worker

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
