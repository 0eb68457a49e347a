"""The law of texts of models that keep recurrent states, over all words (case M5).

The processors of the call leave the two best tokens with a half each, so that probabilities lie on
the grid whatever a random model says; which two they are depends on all tokens before, through
states that a rejection has to put back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfTargetEngine
from draftwire.engines.hf.cache import SequenceCache
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.report import Report
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.architectures import tiny_config
from testing.harness.tiny_models import tiny_tokenizer
from testing.toys.models import ToyDrafter
from tests.engines.enumerated_laws import Law, ProposalTree, Text, law_of_calls, own_law
from tests.engines.hook_calls import run
from tests.engines.test_hf_states import shared, stale

V = 8
PROMPT = [3, 7, 2, 5, 4, 4, 6, 5, 6, 2, 3, 7]
LENGTH = 3
MODELS = ["qwen3_5_text", "mamba2"]
HALVES: dict[str, Any] = {"temperature": 1e9, "top_k": 2}


@functools.cache
def hybrid(model_type: str) -> Any:
    """A random model of eight ids, of which each token depends on all before it."""
    config = tiny_config(model_type)
    config.vocab_size = V
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return model


@functools.cache
def law_alone(model_type: str) -> Law:
    return own_law(hybrid(model_type), PROMPT, LENGTH, lambda: HALVES)


def hostile(law: Law) -> Callable[[tuple[int, ...]], list[float]]:
    """The table of a drafter that knows the law and is wrong in another way at each place.

    Certain of a token that has a half; torn between one that has a half and one that has nothing;
    certain of one that has nothing.
    """

    def table(context: tuple[int, ...]) -> list[float]:
        text = context[len(PROMPT) :]
        likely = {each[len(text)] for each in law if each[: len(text)] == text} or {0}
        right, wrong = min(likely), min(set(range(V)) - likely)
        drawn = [(right,), (right, wrong), (wrong,)][len(context) % 3]
        return [float(each in drawn) for each in range(V)]

    return table


class Calls:
    """Calls of the hook for a hybrid, by the hostile drafter."""

    def __init__(self, model_type: str) -> None:
        self.model, self.words = hybrid(model_type), ProposalTree()
        engine = HfTargetEngine(self.model, tiny_tokenizer(V), identity=b"t" * 32)
        toy = ToyDrafter(
            hostile(law_alone(model_type)),
            V,
            tokenizer_hash=engine.tokenizer_hash,
            id_map_hash=engine.id_map_hash,
        )
        program = DrafterProgram(toy, DrafterConfig(max_support=V), source=self.words)
        self.drafter = LocalDrafter(program, engine, audit=False)
        self.accepted = self.rejected = 0

    def __call__(self) -> Text:
        reports: list[Report] = []
        ids = run(
            self.model,
            [PROMPT],
            self.drafter,
            do_sample=True,
            seed=1,
            max_new_tokens=LENGTH,
            policy=ProposalPolicy(Layout.DENSE, 2, 1.0),
            reports=reports,
            **HALVES,
        )
        self.accepted += reports[0].accepted
        self.rejected += reports[0].rejected
        return tuple(ids[0, len(PROMPT) :].tolist())

    def law(self, patch: pytest.MonkeyPatch) -> dict[Text, Fraction]:
        return law_of_calls(patch, self.words, self)


@pytest.mark.parametrize("model_type", MODELS)
def test_m5_a_model_with_states_has_its_own_law_whatever_is_drafted(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case M5: states are copied and put back, with drafts rejected at every place."""
    calls = Calls(model_type)
    restored: list[int] = []
    rewind = SequenceCache.rewind

    def counted(cache: SequenceCache, length: int, **options: Any) -> None:
        restored.append(cache.held - length)
        rewind(cache, length, **options)

    monkeypatch.setattr(SequenceCache, "rewind", counted)
    law = calls.law(monkeypatch)
    assert calls.accepted
    assert calls.rejected
    assert max(restored) >= 2
    assert law == law_alone(model_type)


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize(("method", "mutant"), [("rewind", stale), ("save", shared)])
def test_m5_a_mutant_that_does_not_put_the_state_back_has_another_law(
    model_type: str, method: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(model_type)  # its self-test has passed
    monkeypatch.setattr(SequenceCache, method, mutant)
    assert calls.law(monkeypatch) != law_alone(model_type)
