"""The ``triton`` kernels: for a GPU, and on the CPU under Triton's interpreter.

Precision on the device: weights and counts are integers and equal the exact layer's to the bit; p,
its sums and every decision are binary64 (A24), with one bound around them. Every operation is a
fixed sequence of launches on fixed shapes.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from draftwire.errors import ConfigurationError
from draftwire.kernels.protocol import QRows
from draftwire.kernels.torch.kernels import Operations, TensorKernels
from draftwire.kernels.triton import quantise as q_kernels
from draftwire.kernels.triton.integer_weights import Weighing, compact, greedy
from draftwire.kernels.triton.sampling import Weights
from draftwire.kernels.triton.tiles import Cut, Tiling, launch
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout


def interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, as Python."""
    return not isinstance(q_kernels.draw_kernel, triton.runtime.JITFunction)


class TritonKernels(TensorKernels):
    """The kernels of one device.

    tiling: how rows are cut, chosen by shape unless given. Errors: ConfigurationError for a CPU
    without the interpreter, or a device that is not there.
    """

    def __init__(self, device: str = "cpu", tiling: Tiling | None = None) -> None:
        """Compute on ``device``."""
        operations = Operations(self._quantise, self._draw, self._measure, self._sample)
        super().__init__("triton", device, operations)
        self._interpreted = interpreted()
        if self.transfer.device.type == "cpu" and not self._interpreted:
            raise ConfigurationError(
                "triton needs a GPU (device cuda), or TRITON_INTERPRET=1 in the environment to run "
                "its kernels slowly on the CPU"
            )
        self._tiling = tiling or Tiling()

    def _quantise(self, logits: Tensor, policy: ProposalPolicy) -> tuple[QRows[Tensor], Tensor]:
        rows = _loadable(logits)
        cut = self._cut(rows)
        if policy.temperature == 0:
            counts, used, status = greedy(rows, cut)
        else:
            work = Weighing(rows, policy.temperature, cut)
            work.restrict(policy)
            counts, used = work.allocate()
            status = work.status
        if policy.layout is Layout.DENSE:
            return QRows(cut.width, None, counts), status
        return compact(counts, used, max(1, policy.support), cut), status

    def _draw(self, q: QRows[Tensor], uniform24: Tensor) -> Tensor:
        counts, cut = q.counts.contiguous(), self._cut(q.counts)
        sums = cut.partial(counts, torch.int32)
        tokens = torch.empty_like(uniform24)
        shape = (cut.count, cut.width, cut.blocks)
        tiles = {"ROWS": cut.rows, "BLOCK": cut.block}
        launch(q_kernels.block_counts_kernel, cut.by_block, counts, sums, *shape, **tiles)
        ids = counts if q.ids is None else q.ids.contiguous()
        arguments = (counts, ids, sums, uniform24, tokens, *shape)
        constants = {"SPARSE": q.ids is not None, "NBP": cut.spread, **tiles}
        launch(q_kernels.draw_kernel, cut.by_row, *arguments, **constants)
        return tokens

    def _measure(self, scores: Tensor, tokens: Tensor) -> Tensor:
        rows = _loadable(scores)
        return Weights(rows, self._cut(rows)).measure(tokens)

    def _sample(self, scores: Tensor, rows: Tensor, q: Tensor | None, first: Tensor) -> Tensor:
        chosen = _loadable(scores.index_select(0, rows))
        return Weights(chosen, self._cut(chosen)).sample(q, first)

    def _cut(self, rows: Tensor) -> Cut:
        count, width = rows.shape
        return self._tiling.of(count, width, self._interpreted)


def _loadable(rows: Tensor) -> Tensor:
    """Contiguous rows in a format that the kernels read."""
    return (rows.to(torch.float32) if rows.dtype is torch.float16 else rows).contiguous()
