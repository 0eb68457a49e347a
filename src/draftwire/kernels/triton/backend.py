"""The ``triton`` backend: kernels for a GPU, which the interpreter also runs on a CPU.

Precision on the device: weights and counts are integers and equal the exact layer's to the bit; p,
its sums and every decision are binary64 (A24), with one bound around them. A round is a fixed
sequence of launches on fixed shapes.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from draftwire.errors import ConfigurationError
from draftwire.exact.quantise import check_temperature
from draftwire.kernels.backend import Drawn, Draws, QRows, Verdicts
from draftwire.kernels.torch.backend import TorchArrays
from draftwire.kernels.torch.quantise import check_logits, check_policy
from draftwire.kernels.torch.verify import check_round
from draftwire.kernels.triton import quantise as q_kernels
from draftwire.kernels.triton import verify as p_kernels
from draftwire.kernels.triton.draw import Drawing, support_spread
from draftwire.kernels.triton.integer_weights import Weighing, compact, greedy
from draftwire.kernels.triton.philox import philox_kernel
from draftwire.kernels.triton.tiles import Cut, Tiling, launch
from draftwire.kernels.triton.top_k import top_k_kernel
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

_PHILOX_ROWS = 128


def interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, as Python."""
    return not isinstance(philox_kernel, triton.runtime.JITFunction)


class TritonBackend(TorchArrays):
    """Operations over tensors by Triton kernels; see :class:`draftwire.kernels.backend.Backend`.

    tiling: how rows are cut, chosen by shape unless given. Errors: ConfigurationError for a CPU
    without the interpreter, or a device that is not there.
    """

    name = "triton"

    def __init__(self, device: str = "cpu", tiling: Tiling | None = None) -> None:
        super().__init__(device)
        self._interpreted = interpreted()
        if self.device.type == "cpu" and not self._interpreted:
            raise ConfigurationError(
                "triton needs a GPU (device cuda), or TRITON_INTERPRET=1 in the environment to run "
                "its kernels slowly on the CPU"
            )
        self._tiling = tiling or Tiling()

    def words(self, keys: Tensor, addresses: Tensor, count: int) -> Tensor:
        """The first words of each address (A13)."""
        number = len(addresses)
        out = torch.empty((number, count), dtype=torch.int64, device=keys.device)
        grid = (triton.cdiv(number, _PHILOX_ROWS),)
        arguments = (keys.contiguous(), addresses.contiguous(), out, number)
        launch(philox_kernel, grid, *arguments, COUNT=count, ROWS=_PHILOX_ROWS)
        return out

    def weights(self, logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Integer weights and the status (A1-A4)."""
        check_temperature(temperature)
        check_logits(logits, 2)
        work = Weighing(logits.contiguous(), temperature, self._cut(logits))
        return work.weights, work.status

    def top_k(self, logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of n candidates, ties to the lowest id (A5, A8)."""
        check_logits(logits, 2)
        number, width = logits.shape
        out = torch.empty((number, k), dtype=torch.float32, device=logits.device)
        out_ids = torch.empty((number, k), dtype=torch.int32, device=logits.device)
        spread = triton.next_power_of_2(width)
        rows = self._cut(logits).rows if self._interpreted else 1
        launch(
            top_k_kernel,
            (triton.cdiv(number, rows),),
            logits.contiguous(),
            ids.contiguous(),
            out,
            out_ids,
            number,
            width,
            k,
            ROWS=rows,
            SPREAD=spread,
        )
        return out, out_ids

    def quantise(self, logits: Tensor, policy: ProposalPolicy) -> tuple[QRows[Tensor], Tensor]:
        """q of each row (A1-A10)."""
        check_policy(policy)
        check_logits(logits, 2)
        logits, cut = logits.contiguous(), self._cut(logits)
        if policy.temperature == 0:
            counts, used, status = greedy(logits, cut)
        else:
            work = Weighing(logits, policy.temperature, cut)
            work.restrict(policy)
            counts, used = work.allocate()
            status = work.status
        if policy.layout is Layout.DENSE:
            return QRows(cut.width, None, counts), status
        return compact(counts, used, max(1, policy.support), cut), status

    def draw(self, q: QRows[Tensor], words: Tensor) -> Tensor:
        """The token of each word (A16)."""
        counts, cut = q.counts.contiguous(), self._cut(q.counts)
        sums = cut.partial(counts, torch.int32)
        tokens = torch.empty_like(words)
        shape = (cut.count, cut.width, cut.blocks)
        tiles = {"ROWS": cut.rows, "BLOCK": cut.block}
        launch(q_kernels.block_counts_kernel, cut.by_block, counts, sums, *shape, **tiles)
        ids = counts if q.ids is None else q.ids.contiguous()
        arguments = (counts, ids, sums, words.contiguous(), tokens, *shape)
        constants = {"SPARSE": q.ids is not None, "NBP": cut.spread, **tiles}
        launch(q_kernels.draw_kernel, cut.by_row, *arguments, **constants)
        return tokens

    def lookup(self, q: QRows[Tensor], tokens: Tensor) -> Tensor:
        """Counts at one id a row."""
        cut = self._cut(q.counts)
        found = torch.empty_like(tokens)
        ids = q.counts if q.ids is None else q.ids
        launch(
            p_kernels.lookup_kernel,
            cut.by_row,
            q.counts.contiguous(),
            ids.contiguous(),
            tokens.contiguous(),
            found,
            q.vocab_size,
            cut.width,
            cut.count,
            SPARSE=q.ids is not None,
            ROWS=cut.rows,
            SP=support_spread(q),
        )
        return found

    def residual_mass(self, logits: Tensor, q: QRows[Tensor]) -> Tensor:
        """sum(max(p - q, 0)) of each row (A19)."""
        drawing = self._plain(logits, q)
        return (drawing.sums.sum(1) / TOTAL).masked_fill(drawing.statuses != 0, torch.nan)

    def correction(self, logits: Tensor, q: QRows[Tensor], first: Tensor) -> Drawn[Tensor]:
        """A token from the residual (A19)."""
        return self._plain(logits, q).find(first)

    def target(self, logits: Tensor, first: Tensor) -> Drawn[Tensor]:
        """A token from p alone (A20)."""
        return self._plain(logits, None).find(first)

    def verify(
        self, logits: Tensor, tokens: Tensor, q: QRows[Tensor], draws: Draws[Tensor]
    ) -> Verdicts[Tensor]:
        """Judge K drafts of each request (A18-A20)."""
        check_round(logits, tokens, q)
        batch, depth = tokens.shape
        flat = logits.reshape(batch * (depth + 1), -1)
        drawing = Drawing(flat, q, batch, self._cut(flat), self._requests(batch, flat))
        drawing.judge(tokens.contiguous(), draws)
        drawn = drawing.find(drawing.firsts)
        return Verdicts(drawing.accepted, drawn.tokens, drawn.status)

    def _plain(self, logits: Tensor, q: QRows[Tensor] | None) -> Drawing:
        check_logits(logits, 2)
        logits = logits.contiguous()
        cut = self._cut(logits)
        drawing = Drawing(logits, q, cut.count, cut, cut)
        drawing.plain()
        return drawing

    def _cut(self, rows: Tensor) -> Cut:
        count, width = rows.shape
        return self._tiling.of(count, width, self._interpreted)

    def _requests(self, batch: int, flat: Tensor) -> Cut:
        """The cut of one row a request, of as many columns as the rows of p."""
        return self._tiling.of(batch, flat.shape[1], self._interpreted)
