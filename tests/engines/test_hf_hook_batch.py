"""Several sequences a call: one pass of the target a round, each row as it is alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine
from draftwire.engines.hf import target as target_module
from draftwire.errors import ConfigurationError
from draftwire.verifier import together
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.report import Report
from testing.harness.tiny_models import tiny_llama, tiny_sliding, tiny_tokenizer
from tests.engines.hook_calls import PROMPT, V, run

PROMPTS = [PROMPT, [3], [12, 5, 5, 8], [2, 9, 4], [4], [6, 6], [13, 2], [7]]


def wide_drafter(model: Any, drafter: Any = None) -> LocalDrafter:
    """A drafter that takes all rows of the call at a time."""
    tokenizer = tiny_tokenizer(V)
    engine = HfDraftEngine(
        tiny_llama(V, layers=1, seed=4) if drafter is None else drafter,
        tokenizer,
        identity=b"d" * 32,
    )
    config = DrafterConfig(max_sessions=8, max_slots=8, max_support=V)
    return LocalDrafter(
        DrafterProgram(engine, config), HfTargetEngine(model, tokenizer, identity=b"t" * 32)
    )


class Passes:
    """Counts the passes of a model, the packed ones too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.questions: list[int] = []
        score = target_module.score_together

        def counting(model: Any, questions: Any) -> Any:
            self.questions.append(len(questions))
            return score(model, questions)

        monkeypatch.setattr("draftwire.engines.hf.hook.score_together", counting)


def models() -> dict[str, Any]:
    return {
        "llama": tiny_llama(V, dtype=torch.float64),
        "sliding": tiny_sliding(V, 4),
    }


@pytest.mark.parametrize("name", ["llama", "sliding"])
def test_a_batch_is_one_pass_a_round_and_each_row_is_the_text_that_it_is_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models()[name]
    passes, reports = Passes(monkeypatch), list[Report]()
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 14, "repetition_penalty": 1.2}
    seeds = list(range(8))
    texts = run(model, PROMPTS, wide_drafter(model), seed=seeds, reports=reports, **options)
    assert passes.questions[0] == 8
    assert len(passes.questions) == max(report.rounds for report in reports)
    assert sum(report.accepted for report in reports) > 0
    assert not any(report.misses for report in reports)
    for seed, prompt, row in zip(seeds, PROMPTS, texts, strict=True):
        alone = run(model, [prompt], wide_drafter(model), seed=seed, **options)[0]
        text = alone[len(prompt) :].tolist()
        assert row[len(PROMPT) :].tolist()[: len(text)] == text


def test_a_greedy_batch_and_its_scores_are_those_of_generate() -> None:
    model = tiny_llama(V)
    options: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": 14,
        "repetition_penalty": 1.3,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    expected = run(model, PROMPTS, **options)
    found = run(model, PROMPTS, wide_drafter(model), **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert len(found.scores) == len(expected.scores)
    for row, text in enumerate(found.sequences[:, len(PROMPT) :].tolist()):
        length = text.index(1) + 1 if 1 in text else len(text)
        for step in range(length):
            for ours, theirs in (
                (found.scores, expected.scores),
                (found.logits, expected.logits),
            ):
                torch.testing.assert_close(ours[step][row], theirs[step][row], rtol=0, atol=1e-4)


def test_scores_of_a_sampled_text_are_the_targets_at_each_place() -> None:
    """No coin of the residual is in them: they are what generate gives for the same text."""
    model = tiny_llama(V)
    options: dict[str, Any] = {"do_sample": True, "top_k": 5, "temperature": 1.3}
    wanted: dict[str, Any] = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    reports: list[Report] = []
    found = run(
        model,
        [PROMPT],
        wide_drafter(model),
        seed=2,
        max_new_tokens=12,
        eos_token_id=None,
        reports=reports,
        **options,
        **wanted,
    )
    ids = found.sequences[0].tolist()
    assert reports[0].accepted
    assert reports[0].rejected
    assert len(found.scores) == len(found.logits) == len(ids) - len(PROMPT)
    for step, (scores, logits) in enumerate(zip(found.scores, found.logits, strict=True)):
        prefix = ids[: len(PROMPT) + step]
        own = run(model, [prefix], max_new_tokens=1, eos_token_id=None, **options, **wanted)
        torch.testing.assert_close(scores, own.scores[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(logits, own.logits[0], rtol=0, atol=1e-4)
        assert scores[0, ids[len(PROMPT) + step]] > -torch.inf


def test_a_drafter_of_few_sessions_takes_the_rows_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, passes, reports = tiny_llama(V), Passes(monkeypatch), list[Report]()
    tokenizer = tiny_tokenizer(V)
    engine = HfDraftEngine(tiny_llama(V, layers=1, seed=4), tokenizer, identity=b"d" * 32)
    few = LocalDrafter(
        DrafterProgram(engine, DrafterConfig(max_sessions=3, max_slots=4, max_support=V)),
        HfTargetEngine(model, tokenizer, identity=b"t" * 32),
    )
    run(model, PROMPTS, few, do_sample=True, seed=1, max_new_tokens=6, reports=reports)
    assert max(passes.questions) == 3
    assert all(report.drafted and not report.misses for report in reports)


def test_a_mutant_that_judges_every_row_by_the_first_rows_scores_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = together.judge

    def first_only(kernels: Any, scores: Any, rounds: Any) -> Any:
        return judge(kernels, scores.flip(0), rounds)

    monkeypatch.setattr(together, "judge", first_only)
    model = tiny_llama(V)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 14}
    found = run(model, PROMPTS, wide_drafter(model), **options)
    expected = run(model, PROMPTS, **options)
    assert found.shape != expected.shape or not torch.equal(found, expected)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_call_may_have_a_depth_of_its_own_or_none(rows: int) -> None:
    model = tiny_llama(V)
    drafter = wide_drafter(model)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
    expected = run(model, PROMPTS[:rows], **options)
    for depth, most in ((0, 0), (1, 1), (3, 3)):
        reports: list[Report] = []
        text = run(model, PROMPTS[:rows], drafter, depth=depth, reports=reports, **options)
        assert torch.equal(text, expected)
        assert all(len(report.proposed_by_position) == most for report in reports)
    for odd in (-1, 1.5, "2"):
        with pytest.raises(ConfigurationError, match="depth"):
            run(model, PROMPTS[:rows], drafter, depth=odd, **options)
