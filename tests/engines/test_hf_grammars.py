"""Processors that keep state, in the hook: driven once along the text, copied for the drafts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from draftwire.engines.hf import processors as processors_module
from draftwire.engines.hf.fork import fork
from draftwire.verifier.report import Report
from testing.harness.tiny_models import tiny_llama
from tests.engines.grammar_matchers import END, GrammarProcessor, Matcher, is_valid
from tests.engines.hook_calls import PROMPT, V, local_drafter, run, target_model

SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 0, "temperature": 1.5, "max_new_tokens": 40}


def grammar() -> LogitsProcessorList:
    return LogitsProcessorList([GrammarProcessor()])


@pytest.mark.parametrize("drafted_by", ["another", "itself"])
def test_m16_texts_of_a_grammar_are_valid_whatever_is_drafted(drafted_by: str) -> None:
    """Case M16: neither drafter knows the grammar; most drafts are against it."""
    model = target_model()
    drafter = local_drafter(model, model if drafted_by == "itself" else None)
    reports: list[Report] = []
    ended = 0
    for seed in range(12):
        text = run(
            model,
            [PROMPT],
            drafter,
            seed=seed,
            reports=reports,
            logits_processor=grammar(),
            **SAMPLED,
        )[0, len(PROMPT) :].tolist()
        assert END not in text[:-1]
        ended += text[-1] == END
        assert is_valid(text) or (text[-1] != END and len(text) == 40)
    assert ended
    assert sum(report.accepted for report in reports) > 0
    assert sum(report.rejected for report in reports) > 0


def test_m16_greedy_text_of_a_grammar_is_that_of_generate_alone() -> None:
    model = target_model()
    options = {"do_sample": False, "max_new_tokens": 16}
    expected = run(model, [PROMPT], logits_processor=grammar(), **options)
    for drafts in (None, model):
        reports: list[Report] = []
        text = run(
            model,
            [PROMPT],
            local_drafter(model, drafts),
            logits_processor=grammar(),
            reports=reports,
            **options,
        )
        assert torch.equal(text, expected)
        assert reports[0].drafted


def test_m16_rows_of_a_batch_have_matchers_of_their_own() -> None:
    model = target_model()
    prompts = [PROMPT, [3], [2, 9, 4]]
    processors = grammar()
    texts = run(
        model, prompts, local_drafter(model), seed=5, logits_processor=processors, **SAMPLED
    )[:, len(PROMPT) :].tolist()
    for text in texts:
        end = text.index(END) + 1 if END in text else len(text)
        assert is_valid(text[:end]) or end == 40
    assert len({tuple(text) for text in texts}) > 1


class Recording(LogitsProcessor):
    """A user's own, that keeps what it was shown."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        return scores


def test_m16_the_callers_processor_sees_each_place_of_the_text_once_and_no_draft() -> None:
    model, recording = target_model(), Recording()
    text = run(
        model,
        [PROMPT],
        local_drafter(model),
        do_sample=True,
        seed=3,
        max_new_tokens=12,
        eos_token_id=None,
        logits_processor=LogitsProcessorList([recording]),
    )[0].tolist()
    asked = [text[:length] for length in range(len(PROMPT), len(text))]
    assert recording.seen == asked[: len(recording.seen)]
    assert len(recording.seen) >= len(asked) - 5  # accepted drafts at the very end need no call


class Stubborn(LogitsProcessor):
    """Raises where 9 was taken, as a matcher does that is shown what it forbade."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if 9 in input_ids[0, len(PROMPT) :].tolist():
            raise RuntimeError("nine")
        scores[:, 9] = -torch.inf
        return scores


def test_m16_a_processor_that_raises_about_a_forbidden_draft_costs_nothing() -> None:
    model = target_model()
    reports: list[Report] = []
    for seed in range(4):
        text = run(
            model,
            [PROMPT],
            local_drafter(model),
            do_sample=True,
            top_k=0,
            temperature=2.0,
            seed=seed,
            max_new_tokens=30,
            eos_token_id=None,
            logits_processor=LogitsProcessorList([Stubborn()]),
            reports=reports,
        )[0, len(PROMPT) :].tolist()
        assert len(text) == 30
        assert 9 not in text
    assert sum(report.accepted for report in reports) > 0


def test_m16_a_mutant_that_asks_the_texts_own_matcher_about_drafts_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processors_module, "fork", lambda processor: processor)
    model = target_model()
    with pytest.raises(Exception, match=r"not allowed|asked twice|its copy"):
        for seed in range(6):
            run(
                model,
                [PROMPT],
                local_drafter(model, model),
                seed=seed,
                logits_processor=grammar(),
                **SAMPLED,
            )


def test_m16_a_fork_shares_models_and_copies_matchers_by_their_own_fork() -> None:
    processor = GrammarProcessor()
    processor.matchers = [Matcher()]
    processor.model = tiny_llama(V)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(processor)
    forked = fork(processor)
    assert forked.model is processor.model  # type: ignore[attr-defined]
    assert forked.matchers[0] is not processor.matchers[0]
    forked.matchers[0].accept_token(4)
    assert not processor.matchers[0].accepted
