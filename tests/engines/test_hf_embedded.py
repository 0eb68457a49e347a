"""The embedded pair: real text, real acceptance, and the very text of generate when greedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import StoppingCriteriaList, StopStringCriteria

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import (
    HfDraftEngine,
    HfTargetEngine,
    LoadedModel,
    embedded_folder,
    load_folder,
    remote_speculative,
    require_pair,
)
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from testing.harness.tiny_models import normalised, stepwise

PROMPTS = (
    "import os\nimport sys\n\n\ndef main(",
    "class Queue:\n    def __init__(self",
    "for i in",
)


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return load_folder(embedded_folder("target"))


@pytest.fixture(scope="module")
def drafter(target: LoadedModel) -> LocalDrafter:
    engine = HfDraftEngine.from_folder(embedded_folder("drafter"))
    verifying = HfTargetEngine.from_loaded(target)
    require_pair(verifying, engine)
    return LocalDrafter(DrafterProgram(engine, DrafterConfig()), verifying)


def run(target: LoadedModel, prompt: str, drafter: Any = None, **arguments: Any) -> torch.Tensor:
    inputs = target.tokenizer(prompt, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    if drafter is not None:
        arguments |= {"custom_generate": remote_speculative, "drafter": drafter}
    return target.model.generate(**inputs, **arguments)


@pytest.mark.parametrize(
    "options",
    [{}, {"repetition_penalty": 1.2}, {"no_repeat_ngram_size": 3}, {"min_new_tokens": 20}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_greedy_text_is_that_of_generate_alone(
    target: LoadedModel, drafter: LocalDrafter, options: dict[str, Any]
) -> None:
    for prompt in PROMPTS:
        arguments = {"do_sample": False, "max_new_tokens": 24, **options}
        reports: list[Report] = []
        text = run(target, prompt, drafter, reports=reports, **arguments)
        assert torch.equal(text, run(target, prompt, **arguments))
        assert not reports[0].misses


def test_sampled_text_has_drafts_that_are_accepted(
    target: LoadedModel, drafter: LocalDrafter
) -> None:
    reports: list[Report] = []
    for seed, prompt in enumerate(PROMPTS):
        run(
            target,
            prompt,
            drafter,
            do_sample=True,
            top_k=0,
            max_new_tokens=40,
            seed=seed,
            reports=reports,
        )
    accepted = sum(report.accepted for report in reports)
    assert accepted > sum(report.drafted for report in reports) / 5
    assert all(not report.misses for report in reports)


def test_p_is_that_of_stepwise_generation(target: LoadedModel) -> None:
    """Binary32 through 24 layers; largest measured distance of a probability: 3e-6."""
    engine = HfTargetEngine.from_loaded(target)
    prompt = target.tokenizer(PROMPTS[1])["input_ids"]
    tokens = target.tokenizer(", size=0):\n        self", add_special_tokens=False)["input_ids"]
    sampling = Sampling(temperature=0.8, top_p=0.95, max_tokens=len(tokens))
    arguments = {
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 0,
        "max_new_tokens": len(tokens),
    }
    expected = stepwise(target.model, prompt, tokens, arguments)
    rows = normalised(engine.score(engine.open(prompt, sampling), prompt, tokens[:-1]))
    np.testing.assert_allclose(rows, expected, atol=5e-5, rtol=0)


def test_stop_strings_hold_through_their_criterion(
    target: LoadedModel, drafter: LocalDrafter
) -> None:
    whole = run(target, PROMPTS[0], do_sample=False, max_new_tokens=24)[0].tolist()
    ids = whole[len(target.tokenizer(PROMPTS[0])["input_ids"]) :]
    word = target.tokenizer.decode(ids[4:6])
    criteria = StoppingCriteriaList([StopStringCriteria(target.tokenizer, [word])])
    options = {"do_sample": False, "max_new_tokens": 24, "stopping_criteria": criteria}
    expected = run(target, PROMPTS[0], **options)
    assert expected.shape[1] < len(whole)
    assert torch.equal(run(target, PROMPTS[0], drafter, **options), expected)
