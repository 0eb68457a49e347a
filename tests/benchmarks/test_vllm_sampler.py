"""One call for a step judges as row after row did, to the bit, whatever kernels compute."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from benchmarks.vllm_sampler import DEPTH, ROWS, prepared_step, require_equal
from draftwire.kernels.registry import kernels_for
from draftwire.verifier.judge import judge
from draftwire.wire.registry import Outcome


@pytest.mark.parametrize("name", ["cpu", "torch"])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_verdicts_are_those_of_row_by_row(batch: int, name: str) -> None:
    outcomes: Counter[Outcome] = Counter()
    for seed in range(4):
        step = prepared_step(batch, vocab=1500, seed=100 * batch + seed)
        scores = torch.from_numpy(step.logits) / np.float32(0.8)
        judged = require_equal(step, scores, [kernels_for(name, scores)])
        outcomes.update(each.outcome for each in judged)
        assert all(len(each.tokens) == each.accepted + 1 <= DEPTH + 1 for each in judged)
    if batch > 1:
        assert outcomes[Outcome.CORRECTION] and outcomes[Outcome.BONUS]


def test_a_real_vocabulary() -> None:
    step = prepared_step(2, seed=5)
    scores = torch.from_numpy(step.logits)
    require_equal(step, scores, [kernels_for(name, scores) for name in ("cpu", "torch")])


def test_another_judgement_is_found() -> None:
    step, other = prepared_step(4, vocab=300, seed=1), prepared_step(4, vocab=300, seed=2)
    scores = torch.from_numpy(step.logits)
    assert judge(ROWS, scores, step.rounds) != judge(ROWS, scores, other.rounds)
