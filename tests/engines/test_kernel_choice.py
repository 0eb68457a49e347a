"""One text whatever the kernels: drafter and target on a transformers model, the choice named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.program import DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine
from draftwire.errors import ConfigurationError
from draftwire.kernels.registry import CHOICES, kernels_for
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import tiny_llama, tiny_tokenizer

V = 23
PROMPT = (3, 7, 2)


def text_of(kernels: str, policy: ProposalPolicy, seed: int, temperature: float):
    """Tokens of a text, and how many drafts were accepted and refused."""
    tokenizer = tiny_tokenizer(V)
    target = HfTargetEngine(tiny_llama(V, seed=1), tokenizer, identity=bytes(32))
    engine = HfDraftEngine(tiny_llama(V, seed=2), tokenizer, identity=bytes(32))
    program = DrafterProgram(engine, DrafterConfig(kernels=kernels))
    sampling = Sampling(seed=seed, max_tokens=16, temperature=temperature)
    with (
        LocalDrafter(program, target) as drafter,
        generate(target, drafter, PROMPT, sampling, policy, kernels=kernels) as running,
    ):
        tokens = [emission.token for emission in running]
    report = running.report
    return tokens, sum(report.accepted_by_position), sum(report.proposed_by_position)


@pytest.mark.parametrize(
    ("policy", "temperature"),
    [
        (ProposalPolicy(Layout.DENSE, 3, 1.0), 1.0),
        (ProposalPolicy(Layout.SPARSE, 3, 0.8, support=6, top_k=9), 0.8),
        (ProposalPolicy(Layout.SPARSE, 3, 0.0, support=1), 0.0),
    ],
    ids=["dense", "sparse", "greedy"],
)
@pytest.mark.parametrize("kernels", ["torch", "triton", "auto"])
def test_a_text_is_the_same_by_any_kernels(
    kernels: str, policy: ProposalPolicy, temperature: float
) -> None:
    """Triton under its interpreter: quantised, drawn and judged by the kernels of a GPU."""
    for seed in (1, 2):
        expected = text_of("cpu", policy, seed, temperature)
        assert expected[1] < expected[2]  # drafts are refused, and corrections drawn
        assert text_of(kernels, policy, seed, temperature) == expected


def test_kernels_that_are_not_there_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="one of auto, cpu, torch, triton"):
        DrafterConfig(kernels="numpy")
    with pytest.raises(ConfigurationError, match="one of auto, cpu, torch, triton"):
        kernels_for("numpy", "cpu")
    if not torch.cuda.is_available():
        for choice in ("torch", "triton"):
            with pytest.raises(ConfigurationError, match="no device 'cuda'"):
                kernels_for(choice, "cuda")


def test_auto_is_what_belongs_to_the_device() -> None:
    assert kernels_for("auto", np.zeros((1, 2), np.float32)).name == "cpu"
    assert kernels_for("auto", torch.zeros(1, 2)).name == "cpu"
    assert kernels_for("triton", "mps").name == "cpu"  # no binary64 there
    assert [kernels_for(choice, "cpu").name for choice in CHOICES[1:]] == ["cpu", "torch", "triton"]
