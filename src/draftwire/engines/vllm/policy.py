"""The proposal policy of one request: its own temperature and restrictions, so that q is near p."""

from __future__ import annotations

from typing import Any, Final

from draftwire.engines.vllm.config import Options
from draftwire.verifier.policy import policy_like
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

GREEDY_BELOW: Final = 1e-5  # vLLM's own bound
_SETTINGS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "max_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "structured_outputs",
    "thinking_token_budget",
)


def policy_of(params: Any, options: Options, vocab_size: int, depth: int) -> ProposalPolicy:
    """Return the policy for a request's SamplingParams; ``depth`` is fixed by the caller.

    Greedy requests draft greedily: one id with all of q, one entry on the wire. The law is the
    target's whatever stands here; only acceptance depends on it.
    """
    if params.temperature < GREEDY_BELOW:
        return ProposalPolicy(Layout.SPARSE, depth, 0.0, support=1)
    return policy_like(
        options.layout,
        depth,
        min(options.support, vocab_size),
        vocab_size,
        temperature=params.temperature,
        top_k=max(params.top_k, 0),  # vLLM also writes -1 for off
        top_p=params.top_p,
    )


def settings_of(params: Any) -> tuple[Any, ...]:
    """Return what p of a request depends on beside the ids: its parameters, ends and grammar.

    A grammar's state follows from the ids, so the grammar itself says all.
    """
    return tuple(getattr(params, name, None) for name in _SETTINGS)
