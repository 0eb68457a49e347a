"""An allocation that does not sum to 2^24 is refused, and nothing is drawn from its row (A9)."""

from dataclasses import replace

import numpy as np
import torch

from draftwire.errors import RefusalCode
from draftwire.kernels.protocol import NO_TOKEN, OK
from draftwire.kernels.torch import quantise as torch_quantise
from draftwire.kernels.torch.kernels import TorchKernels
from draftwire.kernels.triton import integer_weights
from draftwire.kernels.triton.kernels import TritonKernels
from draftwire.wire.registry import TOTAL

from .batches import policy

LOGITS = np.array([[0.3, 0.1, -0.2, 0.7, 0.0], [0.0, -np.inf, -np.inf, -np.inf, -np.inf]])


def outcomes(kernels):
    """Statuses, and the tokens of three words."""
    q, status = kernels.quantise(LOGITS.astype(np.float32), policy())
    drawn = [kernels.draw(q, np.full(2, word)).tolist() for word in (0, TOTAL // 2, TOTAL - 1)]
    return status.tolist(), drawn


def test_torch_refuses_counts_that_lack_what_was_left(monkeypatch):
    monkeypatch.setattr(
        torch_quantise, "chosen", lambda keys, threshold, ties: torch.zeros_like(keys > 0)
    )
    status, drawn = outcomes(TorchKernels())
    assert status == [RefusalCode.INCONSISTENT_ALLOCATION, OK]
    assert drawn == [[NO_TOKEN, 0]] * 3


def test_triton_refuses_counts_that_lack_what_was_left(monkeypatch):
    choose = integer_weights.choose

    def none(keys, needed, width, cut, **more):
        made = choose(keys, needed, width, cut, **more)
        return replace(made, thresholds=made.thresholds.fill_(1 << 62), ties=made.ties.zero_())

    monkeypatch.setattr(integer_weights, "choose", none)
    status, drawn = outcomes(TritonKernels())
    assert status == [RefusalCode.INCONSISTENT_ALLOCATION, OK]
    assert drawn == [[NO_TOKEN, 0]] * 3
