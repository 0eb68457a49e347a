"""The launches that judge drafts and draw from p or from max(p - q, 0) on the device (A18-A20)."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from draftwire.kernels.backend import Drawn, Draws, QRows, bound_of
from draftwire.kernels.triton import verify as kernels
from draftwire.kernels.triton.tiles import Cut, extremes, launch


class Drawing:
    """One draw a request from p, or from max(p - q, 0), of rows of logits (A18-A20)."""

    def __init__(
        self, logits: Tensor, q: QRows[Tensor] | None, batch: int, rows: Cut, requests: Cut
    ) -> None:
        self._logits, self._q, self._rows, self._requests = logits, q, rows, requests
        self._bound = bound_of(rows.width)
        device = logits.device
        self._corrects = False
        self._dense = torch.empty(0, dtype=torch.int32, device=device)
        self._at = torch.arange(batch, device=device)
        self._keeps = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.firsts = torch.empty_like(self._at)
        self._largests = torch.empty(batch, dtype=torch.float64, device=device)
        self._scales = torch.empty_like(self._largests)
        self.statuses = torch.empty(batch, dtype=torch.int32, device=device)
        self._faults = torch.zeros_like(self.statuses)
        self.accepted = torch.zeros_like(self._at)
        self.sums = requests.partial(logits, torch.float64)
        self._tops, self._lows = extremes(logits, rows)
        self._masses = rows.partial(logits, torch.float64)
        shape = (rows.count, rows.width, rows.blocks)
        tiles = {"ROWS": rows.rows, "BLOCK": rows.block, "NBP": rows.spread}
        arguments = (logits, self._tops, self._lows, self._masses, *shape)
        launch(kernels.mass_kernel, rows.by_block, *arguments, **tiles)

    def plain(self) -> None:
        """Every row is its own request; with a q, the draw is the correction."""
        cut = self._requests
        states = (self._tops, self._lows, self._masses)
        out = (self._at, self._largests, self._scales, self.statuses)
        arguments = (*states, *out, cut.count, cut.blocks)
        rows = {"ROWS": cut.rows, "NBP": cut.spread}
        launch(kernels.plain_kernel, cut.by_row, *arguments, **rows)
        if self._q is not None:
            self._corrects = True
            self._keeps = torch.arange(cut.count, device=self._logits.device)
        self._residual()

    def judge(self, tokens: Tensor, draws: Draws[Tensor]) -> None:
        """Accept or reject all K drafts of each request, and find the row to draw from."""
        assert self._q is not None
        batch, depth = tokens.shape
        counts = self._q.counts.contiguous()
        ids = counts if self._q.ids is None else self._q.ids.contiguous()
        cut = self._requests
        words = (draws.acceptance, draws.correction, draws.bonus)
        launch(
            kernels.judge_kernel,
            cut.by_row,
            self._logits,
            self._tops,
            self._lows,
            self._masses,
            tokens,
            counts,
            ids,
            *words,
            self._at,
            self._keeps,
            self.firsts,
            self._largests,
            self._scales,
            self.statuses,
            self._faults,
            self.accepted,
            batch,
            depth,
            cut.width,
            counts.shape[-1],
            cut.blocks,
            *(each.stride(0) for each in words),
            bound=self._bound,
            SPARSE=self._q.ids is not None,
            ROWS=cut.rows,
            NBP=cut.spread,
            SP=support_spread(self._q),
        )
        self._residual()

    def find(self, first: Tensor) -> Drawn[Tensor]:
        """The token that U draws (A15)."""
        cut = self._requests
        tokens = torch.empty_like(self._at)
        launch(
            kernels.find_kernel,
            cut.by_row,
            self._logits,
            self._dense,
            *self._places(),
            self.sums,
            first.contiguous(),
            self._faults,
            self.statuses,
            self.accepted,
            tokens,
            cut.count,
            cut.width,
            cut.blocks,
            bound=self._bound,
            CORRECTS=self._corrects,
            ROWS=cut.rows,
            BLOCK=cut.block,
            NBP=cut.spread,
        )
        return Drawn(tokens, self.statuses)

    def _places(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._at, self._keeps, self._largests, self._scales

    def _residual(self) -> None:
        cut = self._requests
        if self._q is not None and self._q.ids is not None:
            self._spread_q(self._q.ids.contiguous(), self._q.counts.contiguous())
        elif self._q is not None:
            self._dense = self._q.counts.contiguous()
        arguments = (self._logits, self._dense, *self._places(), self.sums)
        shape = (cut.count, cut.width, cut.blocks)
        tiles = {"ROWS": cut.rows, "BLOCK": cut.block}
        launch(kernels.residual_kernel, cut.by_block, *arguments, *shape, **tiles)

    def _spread_q(self, ids: Tensor, counts: Tensor) -> None:
        """The one sparse row of q of each request as a dense one, row r for request r."""
        assert self._q is not None
        cut, width = self._requests, counts.shape[-1]
        shape = (cut.count, cut.width)
        self._dense = torch.zeros(shape, dtype=torch.int32, device=counts.device)
        arguments = (counts, ids, self._keeps, self._dense, width, cut.width, cut.count)
        constants = {"ROWS": cut.rows, "SP": support_spread(self._q)}
        launch(kernels.spread_q_kernel, cut.by_row, *arguments, **constants)
        every = torch.arange(cut.count, device=counts.device)
        self._keeps = torch.where(self._keeps >= 0, every, self._keeps)


def support_spread(q: QRows[Tensor]) -> int:
    """Width of a tile that holds the support of a sparse row; 1 for dense rows."""
    return 1 if q.ids is None else int(triton.next_power_of_2(q.counts.shape[-1]))
