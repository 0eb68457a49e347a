"""Rows of logits that quantisers and verifiers get wrong, and policies to put them under."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

ADVERSARIAL_EVERY = 8


def policy(temperature: float = 1.0, **restrictions: Any) -> ProposalPolicy:
    """A policy of depth 5, sparse where it has a support."""
    layout = Layout.SPARSE if restrictions.get("support") else Layout.DENSE
    return ProposalPolicy(layout, 5, temperature, **restrictions)


POLICIES = [
    policy(),
    policy(support=4),
    policy(float(np.float32(0.7)), top_k=3),
    policy(top_p=TOTAL // 2),
    policy(min_p=TOTAL // 20, support=8),
    policy(2.0**14),
    policy(0.0),
    policy(2.0**-14, support=2),
    policy(top_p=TOTAL - 1, support=1),
    policy(0.125, top_k=6, top_p=TOTAL * 9 // 10, min_p=TOTAL // 100, support=3),
    policy(0.0, support=2),
    policy(min_p=1),
    policy(3.0, top_k=500, support=32),
    policy(1.5),
]


def logits_of(count: int, size: int, seed: int, first: int = 0) -> NDArray[np.float32]:
    """Random rows of several widths, and every eighth an adversarial one: (count, size).

    first: the number of the first row, where these are part of more: the kinds of adversarial rows
    go on from there.
    """
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((count, size))
    wide = normal * rng.choice([0.05, 1.0, 5.0, 12.0, 40.0], (count, 1))
    rows: NDArray[np.float32] = wide.astype(np.float32)
    column = np.arange(size)
    kinds = [
        np.zeros(size),
        np.round(normal[0] * 2) / 2,
        np.where(column == size // 2, 0.0, -np.inf),  # one legal id
        1 + 2.0**-23 * rng.integers(0, 3, size),  # near-tied
        np.where(column == size - 1, 0.0, -26.34),  # w = 1 beside w = 2^38
        np.where(column % 2, 0.0, -0.0),
        normal[0] * 1e-40,
        normal[0] * 1e30,
        -38 * np.log(2) + (column - size // 2) * 2.0**-21,
        -0.5 * np.log(2) + column * 2.0**-23,
        np.where((column % 3 > 0) & (column > 0), -np.inf, normal[0]),
        -column * 0.25,
    ]
    for index in range(-first % ADVERSARIAL_EVERY, count, ADVERSARIAL_EVERY):
        turn = (first + index) // ADVERSARIAL_EVERY
        rows[index] = kinds[turn % len(kinds)]
        if turn // len(kinds) % 2:  # the largest first, so that the others lie below it
            finite = rows[index][np.isfinite(rows[index])]
            rows[index, 0] = max(0.0, float(np.abs(finite).max()))
    return rows


def with_refused(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows with some that A1 refuses among them: 1 NaN, 2 nothing, 3 +inf, 5 NaN with sign."""
    rows = rows.copy()
    rows[1, -1] = np.nan
    rows[2] = -np.inf
    rows[3, 0] = np.inf
    rows[5, 0] = np.array([0xFFC00001], np.uint32).view(np.float32)[0]
    return rows
