"""A proposal policy that follows the request's own parameters, so that q is near p."""

from __future__ import annotations

import numpy as np

from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_TEMPERATURE, MIN_TEMPERATURE, TOTAL, Layout


def policy_like(
    layout: Layout,
    depth: int,
    support: int,
    vocab_size: int,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> ProposalPolicy:
    """Return the policy with a request's temperature (0 = greedy) and restrictions.

    top_k 0, top_p 1 and min_p 0 are off. All of it decides only how often drafts are accepted, so
    that rounding to tickets and to binary32, inside the ranges of A2 to A7, changes no law.
    """
    inside = min(max(temperature, MIN_TEMPERATURE), MAX_TEMPERATURE) if temperature else 0.0
    return ProposalPolicy(
        layout=layout,
        depth=depth,
        temperature=float(np.float32(inside)),
        support=support,
        top_k=top_k if top_k < vocab_size else 0,
        top_p=min(max(1, round(top_p * TOTAL)), TOTAL),
        min_p=round(min_p * TOTAL),
    )
