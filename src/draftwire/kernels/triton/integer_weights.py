"""The launches that make counts of logits on the device (A1-A10)."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from draftwire.kernels.protocol import QRows
from draftwire.kernels.triton import quantise as kernels
from draftwire.kernels.triton.select import Choice, choose
from draftwire.kernels.triton.tiles import Cut, extremes, launch
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import PAD_ID, TOTAL, WEIGHT_BITS

_KEY_BITS = 33
_REMAINDER_BITS = 62


class Weighing:
    """Weights of rows of logits on their way to counts (A1-A9)."""

    def __init__(self, logits: Tensor, temperature: float, cut: Cut) -> None:
        self._logits, self._cut = logits, cut
        self._tiles = {"ROWS": cut.rows, "BLOCK": cut.block, "NBP": cut.spread}
        self._shape = (cut.count, cut.width, cut.blocks)
        self.weights = torch.empty(logits.shape, dtype=torch.int64, device=logits.device)
        self._sums = cut.partial(logits, torch.int64)
        self._positives = cut.partial(logits, torch.int32)
        self.status = torch.empty(cut.count, dtype=torch.int32, device=logits.device)
        inverse = struct.unpack("<q", struct.pack("<d", 1.0 / temperature))[0]
        out = (self.weights, self._sums, self._positives, self.status)
        arguments = (logits, *extremes(logits, cut), inverse, *out, *self._shape)
        launch(kernels.weigh_kernel, cut.by_block, *arguments, **self._tiles)

    def restrict(self, policy: ProposalPolicy) -> None:
        """Zero the weights that A5 to A8 take away, in that order."""
        if policy.top_k:
            self._largest(policy.top_k)
        if policy.top_p < TOTAL:
            needed = self._needed(kernels.mass_needed_kernel, self._sums, policy.top_p)
            choice = choose(self.weights, needed, WEIGHT_BITS + 1, self._cut, by_mass=True)
            self._keep(self.weights, choice, 0)
        if policy.min_p:
            self._keep(self.weights, None, policy.min_p << (WEIGHT_BITS - 24))
        if policy.support and policy.support < self._cut.width:
            self._largest(policy.support)

    def allocate(self) -> tuple[Tensor, Tensor]:
        """Counts int32 (N, V), and ids in use of each block int32 (N, blocks) (A9)."""
        cut, tiles, shape = self._cut, self._tiles, self._shape
        counts = torch.empty_like(self.weights, dtype=torch.int32)
        remainders = torch.empty_like(self.weights)
        floors = cut.partial(counts, torch.int64)
        needed = self._vector(torch.int64)
        out = (counts, remainders, floors)
        inputs = (self.weights, self._sums)
        launch(kernels.floor_counts_kernel, cut.by_block, *inputs, *out, *shape, **tiles)
        rows = {"ROWS": cut.rows, "NBP": cut.spread}
        inputs = (floors, self._positives)
        state = (needed, self.status, cut.count, cut.blocks)
        launch(kernels.left_kernel, cut.by_row, *inputs, *state, **rows)
        choice = choose(remainders, needed, _REMAINDER_BITS, cut)
        sums, used = cut.partial(counts, torch.int32), cut.partial(counts, torch.int32)
        places = (choice.thresholds, choice.ties, choice.tie_counts)
        ends = (needed, sums, used, *shape)
        arguments = (counts, remainders, *places, *ends)
        launch(kernels.assign_remainders_kernel, cut.by_block, *arguments, **tiles)
        launch(kernels.settle_kernel, cut.by_row, sums, *state[1:], **rows)
        return counts, used

    def _largest(self, count: int) -> None:
        keys = torch.empty_like(self.weights)
        tiles = {"ROWS": self._cut.rows, "BLOCK": self._cut.block}
        arguments = (self._logits, self.weights, keys, self._cut.count, self._cut.width)
        launch(kernels.order_kernel, self._cut.by_block, *arguments, **tiles)
        needed = self._needed(kernels.count_needed_kernel, self._positives, count)
        self._keep(keys, choose(keys, needed, _KEY_BITS, self._cut), 0)

    def _needed(self, kernel: Any, partial: Tensor, limit: int) -> Tensor:
        needed = self._vector(torch.int64)
        arguments = (partial, needed, limit, self._cut.count, self._cut.blocks)
        rows = {"ROWS": self._cut.rows, "NBP": self._cut.spread}
        launch(kernel, self._cut.by_row, *arguments, **rows)
        return needed

    def _keep(self, keys: Tensor, choice: Choice | None, least: int) -> None:
        kept = torch.empty_like(self.weights)
        empty = self.status  # stands for a choice where the value alone decides
        places = (empty, empty, empty)
        if choice is not None:
            places = (choice.thresholds, choice.ties, choice.tie_counts)
        out = (kept, self._sums, self._positives, least)
        launch(
            kernels.cut_kernel,
            self._cut.by_block,
            keys,
            self.weights,
            *places,
            *out,
            *self._shape,
            BY_VALUE=choice is None,
            **self._tiles,
        )
        self.weights = kept

    def _vector(self, dtype: torch.dtype) -> Tensor:
        return torch.empty(self._cut.count, dtype=dtype, device=self._logits.device)


def greedy(logits: Tensor, cut: Cut) -> tuple[Tensor, Tensor, Tensor]:
    """The whole count on the lowest id with the largest logit: counts, used, status (A2)."""
    counts = torch.empty(logits.shape, dtype=torch.int32, device=logits.device)
    firsts, used = cut.partial(logits, torch.int32), cut.partial(logits, torch.int32)
    status = torch.empty(cut.count, dtype=torch.int32, device=logits.device)
    shape = (cut.count, cut.width, cut.blocks)
    tiles = {"ROWS": cut.rows, "BLOCK": cut.block, "NBP": cut.spread}
    arguments = (logits, *extremes(logits, cut), firsts, status, *shape)
    launch(kernels.first_largest_kernel, cut.by_block, *arguments, **tiles)
    launch(kernels.point_kernel, cut.by_block, firsts, counts, used, *shape, **tiles)
    return counts, used, status


def compact(counts: Tensor, used: Tensor, width: int, cut: Cut) -> QRows[Tensor]:
    """Dense counts as sparse rows of ``width`` columns."""
    shape = (cut.count, width)
    ids = torch.full(shape, PAD_ID, dtype=torch.int32, device=counts.device)
    kept = torch.zeros(shape, dtype=torch.int32, device=counts.device)
    sizes = (width, cut.count, cut.width, cut.blocks)
    tiles = {"ROWS": cut.rows, "BLOCK": cut.block, "NBP": cut.spread}
    arguments = (counts, used, ids, kept, *sizes)
    launch(kernels.compact_kernel, cut.by_block, *arguments, **tiles)
    return QRows(cut.width, ids, kept)
