"""The proposal policy of one request: its own temperature and restrictions, so that q is near p."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from draftwire.engines.vllm.config import Options
from draftwire.errors import ConfigurationError
from draftwire.verifier.policy import policy_like
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_DEPTH, Layout

DEPTH: Final = "draftwire_depth"
"""The key of a request's own depth, in ``extra_args`` (``vllm_xargs`` over HTTP)."""
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


def policy_of(
    params: Any, options: Options, vocab_size: int, depth: int, processors: bytes = b""
) -> ProposalPolicy:
    """Return the policy for a request's SamplingParams; ``depth`` is fixed by the caller.

    processors: what the drafter does to its logits before all else (P34). Greedy requests draft
    greedily: one id with all of q, one entry on the wire. The law is the target's whatever stands
    here; only acceptance depends on it.
    """
    if params.temperature < GREEDY_BELOW:
        return ProposalPolicy(Layout.SPARSE, depth, 0.0, support=1, processors=processors)
    policy = policy_like(
        options.layout,
        depth,
        min(options.support, vocab_size),
        vocab_size,
        temperature=params.temperature,
        top_k=max(params.top_k, 0),  # vLLM also writes -1 for off
        top_p=params.top_p,
        min_p=params.min_p,
    )
    return replace(policy, processors=processors) if processors else policy


def depth_of(params: Any) -> int:
    """Return the drafts a round that a request lets be asked for, 0 = none; MAX_DEPTH if unsaid."""
    depth = (params.extra_args or {}).get(DEPTH, MAX_DEPTH)
    return depth if type(depth) is int and 0 <= depth <= MAX_DEPTH else MAX_DEPTH


def check_depth(params: Any) -> None:
    """Refuse what is no depth under DEPTH of ``extra_args``. Raises ConfigurationError."""
    depth = (params.extra_args or {}).get(DEPTH, MAX_DEPTH)
    if type(depth) is not int or not 0 <= depth <= MAX_DEPTH:
        raise ConfigurationError(
            f"{DEPTH} must be a whole number from 0 (no drafts) to {MAX_DEPTH}, not {depth!r}"
        )


def settings_of(params: Any) -> tuple[Any, ...]:
    """Return what p of a request depends on beside the ids: its parameters, ends and grammar.

    A grammar's state follows from the ids, so the grammar itself says all.
    """
    return tuple(getattr(params, name, None) for name in _SETTINGS)
