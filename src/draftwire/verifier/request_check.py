"""What a request may ask for, checked before anything is opened for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import index

from draftwire.errors import ConfigurationError
from draftwire.verifier.drafter import Drafter
from draftwire.verifier.engine import Context, TargetEngine
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout


def with_depth(
    drafter: Drafter | None, policy: ProposalPolicy | None, depth: int | None
) -> tuple[Drafter | None, ProposalPolicy | None]:
    """Return the drafter and the policy of a request that asks for a depth of its own.

    depth: 0 = no drafter; None = the policy's. Raises ConfigurationError.
    """
    if depth is None:
        return drafter, policy
    try:
        depth = index(depth)
    except TypeError:
        depth = -1
    if depth < 0:
        raise ConfigurationError("the depth of a request is a whole number, 0 for no drafting")
    if depth == 0:
        return None, policy
    return drafter, policy if policy is None else replace(policy, depth=depth)


def prompt_ids(prompt: Sequence[int]) -> list[int]:
    """Return ids, of NumPy or torch as well, as Python's. Raises ConfigurationError for others."""
    try:
        if isinstance(prompt, str | bytes):
            raise TypeError
        return [index(token) for token in prompt]
    except TypeError:
        raise ConfigurationError(
            "the prompt must be ids, which are whole numbers: give what a tokenizer makes of a text"
        ) from None


def check_request(
    target: TargetEngine[Context],
    drafter: Drafter | None,
    prompt: Sequence[int],
    sampling: Sampling,
    policy: ProposalPolicy | None,
) -> None:
    """Refuse what no text could be made of. Raises ConfigurationError, which says what to do."""
    if not prompt:
        raise ConfigurationError("the prompt is empty: give at least one token")
    if not all(0 <= token < target.vocab_size for token in prompt):
        raise ConfigurationError(f"the prompt holds an id outside [0, {target.vocab_size})")
    if len(prompt) >= target.max_context:
        raise ConfigurationError(
            f"the prompt has {len(prompt)} tokens, the target's context takes {target.max_context}:"
            " shorten the prompt"
        )
    if drafter is None:
        return
    if policy is None:
        raise ConfigurationError("a drafter needs a proposal policy: pass one, with its depth")
    if policy.depth < 1:
        raise ConfigurationError("the depth must be 1 or more; for none, use no drafter")
    if policy.layout is Layout.IDS_ONLY and not (sampling.greedy and policy.temperature == 0):
        raise ConfigurationError(
            "the v1 wire carries ids only and is for temperature 0, on both sides: use a v2 layout"
            " (dense or sparse) to sample"
        )
