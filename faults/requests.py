"""The requests that scenes run: one to be watched, and one so small that its law is enumerated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, WireVersion
from toys.models import Table, mixed


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


_PAIRS: Final = (((1, 1), (2, 0)), ((2, 0), (1, 1)), ((1, 1), (1, 1)), ((1, 1), (0, 2)))


def _place(context: tuple[int, ...]) -> int:
    value = 3
    for token in context:
        value = (value * 31 + token + 7) % 104729
    return value % len(_PAIRS)


TINY: Final = Size(
    lambda context: _PAIRS[_place(context)][0],
    lambda context: _PAIRS[_place(context)][1],
    vocab_size=2,
    policy=ProposalPolicy(Layout.DENSE, 1, 1.0),
    tokens=4,
    round=2,
)
"""Halves alone: two words stand for all 2^24, so its law can be enumerated. Depth 1, so that every
text has a second round."""
