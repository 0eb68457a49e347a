"""The launches that measure rows of scores and draw from them on the device (A17-A20)."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwire.kernels.protocol import bound_of
from draftwire.kernels.triton import residual as kernels
from draftwire.kernels.triton.tiles import Cut, extremes, launch


class Weights:
    """What kernels share of rows of scores: the largest of each, and the mass of each block."""

    def __init__(self, scores: Tensor, cut: Cut) -> None:
        """Launch both; scores are contiguous."""
        self._scores, self._cut = scores, cut
        self._shape = (cut.count, cut.width, cut.blocks)
        self._rows = {"ROWS": cut.rows, "NBP": cut.spread}
        self._tiles = {**self._rows, "BLOCK": cut.block}
        self._state = (*extremes(scores, cut), cut.partial(scores, torch.float64))
        arguments = (scores, *self._state, *self._shape)
        launch(kernels.mass_kernel, cut.by_block, *arguments, **self._tiles)

    def measure(self, tokens: Tensor) -> Tensor:
        """Largest score, score of one token and mass of each row: binary64 (N, 3)."""
        shape = (self._cut.count, 3)
        out = torch.empty(shape, dtype=torch.float64, device=self._scores.device)
        arguments = (self._scores, tokens, *self._state, out, *self._shape)
        launch(kernels.measure_kernel, self._cut.by_row, *arguments, **self._rows)
        return out

    def sample(self, q: Tensor | None, first: Tensor) -> Tensor:
        """A token of each row, int64 (N,), NO_TOKEN within the bound. q: counts int32 (N, V)."""
        cut = self._cut
        tokens = torch.empty_like(first)
        sums = cut.partial(self._scores, torch.float64)
        counts = tokens if q is None else q
        inputs = (self._scores, counts, *self._state, sums)
        constants: dict[str, float] = {"HAS_Q": q is not None, **self._tiles}
        launch(kernels.residual_kernel, cut.by_block, *inputs, *self._shape, **constants)
        constants["bound"] = bound_of(cut.width)
        outputs = (first, tokens, *self._shape)
        launch(kernels.find_kernel, cut.by_row, *inputs, *outputs, **constants)
        return tokens
