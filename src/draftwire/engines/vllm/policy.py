"""The proposal policy of one request: its own temperature and restrictions, so that q is near p."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from draftwire.engines.vllm.config import Options
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_TEMPERATURE, MIN_TEMPERATURE, TICKETS, Layout

GREEDY_BELOW: Final = 1e-5  # vLLM's own bound


def policy_of(params: Any, options: Options, vocab_size: int, depth: int) -> ProposalPolicy:
    """Return the policy for a request's SamplingParams; ``depth`` is fixed by the caller.

    Greedy requests draft greedily: one id with all of q, one entry on the wire. The law is the
    target's whatever stands here; only acceptance depends on it.
    """
    if params.temperature < GREEDY_BELOW:
        return ProposalPolicy(Layout.SPARSE, depth, 0.0, support=1)
    temperature = float(np.float32(params.temperature))
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    return ProposalPolicy(
        options.layout,
        depth,
        min(max(temperature, MIN_TEMPERATURE), MAX_TEMPERATURE),
        support=min(options.support, vocab_size),
        top_k=top_k,
        top_p=min(max(round(params.top_p * TICKETS), 1), TICKETS),
    )
