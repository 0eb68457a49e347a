"""Policies that follow a request stay inside what STEP can say."""

from __future__ import annotations

import numpy as np
import pytest

from draftwire.kernels import cpu
from draftwire.verifier.policy import policy_like
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_TEMPERATURE, MIN_TEMPERATURE, TOTAL, Layout

V = 10


def like(**parameters: float) -> ProposalPolicy:
    return policy_like(Layout.SPARSE, 3, 4, V, **({"temperature": 1.0} | parameters))  # type: ignore[arg-type]


def test_what_is_off_is_off() -> None:
    assert like() == ProposalPolicy(Layout.SPARSE, 3, 1.0, support=4)


def test_restrictions_become_tickets() -> None:
    policy = like(temperature=0.7, top_k=5, top_p=0.25, min_p=0.5)
    assert policy.temperature == float(np.float32(0.7))
    assert (policy.top_k, policy.top_p, policy.min_p) == (5, TOTAL // 4, TOTAL // 2)


@pytest.mark.parametrize(
    ("parameters", "field", "value"),
    [
        ({"temperature": 0.0}, "temperature", 0.0),
        ({"temperature": 1e-9}, "temperature", MIN_TEMPERATURE),
        ({"temperature": 1e9}, "temperature", MAX_TEMPERATURE),
        ({"top_k": V}, "top_k", 0),
        ({"top_k": V + 7}, "top_k", 0),
        ({"top_p": 1e-12}, "top_p", 1),
        ({"min_p": 1.0}, "min_p", TOTAL),
    ],
)
def test_the_ends_of_every_range_can_be_drafted(
    parameters: dict[str, float], field: str, value: float
) -> None:
    policy = like(**parameters)
    assert getattr(policy, field) == value
    cpu.quantise(np.linspace(-3, 3, V, dtype=np.float32), policy)
