"""The law of texts under a processor that keeps state, over all words (case M16)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine
from draftwire.engines.hf import processors as processors_module
from draftwire.engines.hf.fork import fork
from draftwire.errors import ConfigurationError
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.report import Report
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import tiny_tokenizer
from tests.engines.enumerated_laws import (
    ProposalTree,
    Text,
    law_of_calls,
    model_of,
    own_law,
    product_of,
)
from tests.engines.hook_calls import run

TARGET = model_of(((1, 1, 0), (0, 1, 1), (1, 0, 1)))
DRAFTER = model_of(((0, 2, 0), (0, 1, 1), (0, 0, 2)))
V = 3
TOGGLE, FORBIDDEN = 1, 2


class Parity:
    """Forbids 2 behind an odd number of 1s. A handle: only its own ``fork`` copies it."""

    def __init__(self, odd: bool = False) -> None:
        self.odd = odd

    def __deepcopy__(self, memo: Any) -> Parity:
        raise TypeError("a handle of another language cannot be copied")

    def fork(self) -> Parity:
        """As xgrammar's GrammarMatcher.fork."""
        return Parity(self.odd)

    def accept_token(self, token: int) -> None:
        """Take the next id. Raises RuntimeError for one that is forbidden."""
        if self.odd and token == FORBIDDEN:
            raise RuntimeError("an id that is not allowed")
        self.odd ^= token == TOGGLE


class Grammar(LogitsProcessor):
    """As ``xgrammar.contrib.hf.LogitsProcessor``: takes the newest id of each row, then masks.

    What it knows of a text is what it was called with, never the ids before.
    """

    def __init__(self) -> None:
        self.matchers: list[Parity] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.matchers:
            self.matchers = [Parity() for _ in input_ids]
        else:
            for matcher, token in zip(self.matchers, input_ids[:, -1].tolist(), strict=True):
                matcher.accept_token(token)
        for matcher, row in zip(self.matchers, scores, strict=True):
            if matcher.odd:
                row[FORBIDDEN] = -torch.inf
        return scores


class Calls:
    """Calls of the hook under the grammar, by one drafter that does not know it."""

    def __init__(self, prompts: list[list[int]], depth: int, length: int) -> None:
        self.words, self.prompts, self.length = ProposalTree(), prompts, length
        tokenizer = tiny_tokenizer(V)
        program = DrafterProgram(
            HfDraftEngine(DRAFTER, tokenizer, identity=b"d" * 32),
            DrafterConfig(max_sessions=2, max_slots=2, max_support=V),
            source=self.words,
        )
        engine = HfTargetEngine(TARGET, tokenizer, identity=b"t" * 32)
        self.drafter = LocalDrafter(program, engine, audit=False)
        self.policy = ProposalPolicy(Layout.DENSE, depth, 1.0)
        self.accepted = self.rejected = 0

    def options(self) -> dict[str, Any]:
        return {"top_k": 0, "logits_processor": LogitsProcessorList([Grammar()])}

    def __call__(self) -> tuple[Text, ...]:
        reports: list[Report] = []
        texts = run(
            TARGET,
            self.prompts,
            self.drafter,
            do_sample=True,
            seed=7,
            max_new_tokens=self.length,
            policy=self.policy,
            reports=reports,
            **self.options(),
        )
        self.accepted += sum(report.accepted for report in reports)
        self.rejected += sum(report.rejected for report in reports)
        return tuple(tuple(row) for row in texts[:, max(map(len, self.prompts)) :].tolist())

    def law(self, patch: pytest.MonkeyPatch) -> dict[tuple[Text, ...], Fraction]:
        return law_of_calls(patch, self.words, self)

    def law_alone(self) -> dict[tuple[Text, ...], Fraction]:
        return product_of(
            [own_law(TARGET, prompt, self.length, self.options) for prompt in self.prompts]
        )


ONE = ([[0]], 2, 3)  # prompts, depth, length
TWO = ([[0], [2, 1]], 1, 2)


@pytest.mark.parametrize("case", [ONE, TWO], ids=["one text", "two texts"])
def test_m16_texts_under_a_grammar_have_the_law_of_generate(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case M16: its state follows the text alone, whatever was drafted, drawn and rejected."""
    calls = Calls(*case)
    law = calls.law(monkeypatch)
    assert calls.accepted
    assert calls.rejected
    assert law == calls.law_alone()
    ungrammatical = product_of(
        [own_law(TARGET, prompt, calls.length, lambda: {"top_k": 0}) for prompt in calls.prompts]
    )
    assert law != ungrammatical


class SharedFork:
    """The first copy of a processor is handed to all texts of a call."""

    def __init__(self) -> None:
        self.first: dict[int, tuple[Any, Any]] = {}

    def __call__(self, processor: Any) -> Any:
        if getattr(processor, "copied", False):
            return fork(processor)
        kept = self.first.get(id(processor))
        if kept is None:
            made = fork(processor)
            made.copied = True
            kept = self.first[id(processor)] = (processor, made)
        return kept[1]


@pytest.mark.parametrize(
    ("case", "mutant"),
    [(ONE, lambda: lambda processor: processor), (TWO, SharedFork)],
    ids=["no copy for the drafts", "one copy for two texts"],
)
def test_m16_a_mutant_that_shares_state_is_refused_or_has_another_law(
    case: Any, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(*case)
    alone = calls.law_alone()
    monkeypatch.setattr(processors_module, "fork", mutant())
    try:
        assert calls.law(monkeypatch) != alone
    except (ConfigurationError, RuntimeError) as error:
        assert "allowed" in str(error) or "asked twice" in str(error) or "its copy" in str(error)
