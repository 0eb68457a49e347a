"""Run every operation of a round once, so that no round pays for compiling or loading it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np

from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels.protocol import Kernels, Round
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.rows import QRow
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout, LayoutSet

# Triton compiles a kernel anew for a count of 1, for one that 16 divides, and for any other.
ROW_COUNTS: Final = (1, 2, 16)
_TOP_P: Final = TOTAL - TOTAL // 16


def policies_of(layouts: LayoutSet, support: int, width: int) -> list[ProposalPolicy]:
    """One policy for each way that proposals of these layouts are computed: A3 to A10.

    Greedy, sampled, and sampled under restrictions. support: of sparse rows. width: V.
    """
    policies = []
    for layout in Layout:
        if LayoutSet(1 << layout) & layouts:
            support_ = min(support, width) if layout is Layout.SPARSE else 0
            policies.append(ProposalPolicy(layout, 1, 0.0, support=support_))
            if layout is not Layout.IDS_ONLY:
                sampled = replace(policies[-1], temperature=1.0)
                few = replace(sampled, top_k=min(8, width - 1), top_p=_TOP_P, min_p=1)
                policies += [sampled, few]
    return policies


@cache
def prepare_kernels(choice: str, device: str, layouts: LayoutSet, support: int, width: int) -> None:
    """Prepare the kernels of a choice and a device for these layouts; once for each.

    Errors: ConfigurationError as ``kernels_for``.
    """
    kernels_for(choice, device).prepare(policies_of(layouts, support, width), width)


def run_through(kernels: Kernels[Any], policies: Sequence[ProposalPolicy], width: int) -> None:
    """Quantise, draw and judge rows of ``width`` columns under each policy, and without drafts.

    Dummy rows, where the kernels compute, at counts that stand for all others; drafts of them are
    the last id, which p hardly ever accepts, so that residuals are drawn from too.
    """
    row = np.linspace(-3, 3, width, dtype=np.float32)
    for count in ROW_COUNTS:
        logits = kernels.from_host(np.repeat(row[None], count, 0))
        scores = kernels.from_host(np.repeat(-8 * row[None], 2 * count, 0))
        _judge(kernels, scores, count, (), ())
        for policy in policies:
            q, _ = kernels.quantise(logits, replace(policy, depth=1))
            tokens = kernels.draw(q, np.full(count, TOTAL - 1))
            rows = kernels.host_rows(q)
            if policy.layout is not Layout.IDS_ONLY:
                _judge(kernels, scores, count, (int(tokens[0]),), rows[:1])


def _judge(
    kernels: Kernels[Any], scores: Any, count: int, tokens: Sequence[int], rows: Sequence[QRow]
) -> None:
    """Judge ``count`` rounds of the same drafts, sampled and greedy."""
    words, height = KeyedWords(RequestKey(0)), len(tokens) + 1
    for greedy in (False, True):
        rounds = [
            Round(tokens, rows, height * at, height, words, 1, 1, at, greedy) for at in range(count)
        ]
        kernels.verify(scores[: height * count], rounds)
