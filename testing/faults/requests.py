"""The requests that scenes run: one to be watched, and ones so small that laws are enumerated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, WireVersion
from testing.toys.models import Table, mixed

PROMPT: Final = (1, 0)
PROMPTS: Final = {1: PROMPT, 2: (0, 1), 3: (1, 1)}
"""Of the first request, the one after or beside it, and a third beside them, by their seeds."""


@dataclass(frozen=True)
class Size:
    """A request and the pair of models that it runs over. round: the one that is struck."""

    p: Table
    q: Table
    vocab_size: int
    policy: ProposalPolicy
    tokens: int
    round: int


def long_request(version: WireVersion, tokens: int = 40) -> Size:
    """A request that shows what happens after the fault; its third round is struck."""

    v1 = version is WireVersion.V1
    policy = (
        ProposalPolicy(Layout.IDS_ONLY, 3, 0.0)
        if v1
        else ProposalPolicy(Layout.SPARSE, 3, 1.0, support=6)
    )
    return Size(mixed(11, 1), mixed(11, 1, sharpness=1.2), 11, policy, tokens=tokens, round=3)


_V: Final = 4
"""Two ids carry all; the others are there so that a wrong support or id is still a valid one."""
_PAIRS: Final = (((1, 1), (1, 1)), ((1, 1), (2, 0)), ((2, 0), (1, 1)), ((1, 1), (0, 2)))
_CERTAIN: Final = ((2, 0), (0, 2))

TINY_POLICIES: Final = (
    ProposalPolicy(Layout.DENSE, 1, 1.0),
    ProposalPolicy(Layout.SPARSE, 1, 1.0, support=2),
    ProposalPolicy(Layout.SPARSE, 2, 1.0, support=2),
)
"""What laws are enumerated with."""

Open = Mapping[int, frozenset[int]]
"""By a request's seed, the places of its text that are left to chance."""


def seed_of(context: tuple[int, ...]) -> int:
    """Return the seed of the request that a context belongs to."""
    return next(seed for seed, prompt in PROMPTS.items() if prompt == context[:2])


def tiny_request(policy: ProposalPolicy, tokens: int, round: int, open_: Open) -> Size:
    """A request whose probabilities are halves where it is open, and certain elsewhere.

    So two words stand for all 2^24 where it is open, and one elsewhere. At the first open place p
    and q are both (1/2, 1/2): there a fault that looks at the draw shows.
    """

    def pair(context: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
        seed = seed_of(context)
        place = len(context) - len(PROMPTS[seed])
        opened = open_.get(seed, frozenset())
        if place in opened:
            return _PAIRS[_mixed(context) % len(_PAIRS) if place > min(opened) else 0]
        row = _CERTAIN[_mixed(context) % len(_CERTAIN)]
        return row, row

    return Size(
        lambda context: (*pair(context)[0], *(0,) * (_V - 2)),
        lambda context: (*pair(context)[1], *(0,) * (_V - 2)),
        vocab_size=_V,
        policy=policy,
        tokens=tokens,
        round=round,
    )


def _mixed(context: tuple[int, ...]) -> int:
    value = 3
    for token in context:
        value = (value * 31 + token + 7) % 104729
    return value
