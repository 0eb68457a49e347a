"""The joint law of several texts in one call of the hook, over all words of all of them.

Texts of a call know nothing of one another: their joint law is the product of what ``generate``
gives each alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
import torch

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, hook
from draftwire.engines.hf.target import score_together
from draftwire.exact.words import Address, KeyedWords, RequestKey
from draftwire.verifier import together
from draftwire.verifier.judge import judge
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.report import Report
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import tiny_tokenizer
from testing.toys.enumeration import WordTree
from tests.engines.enumerated_laws import (
    KeyedTree,
    ProposalTree,
    Text,
    law_of_calls,
    model_of,
    own_law,
    product_of,
)
from tests.engines.hook_calls import run

TARGET = model_of(((1, 1, 0), (0, 1, 1), (1, 0, 1)))
DRAFTER = model_of(((0, 2, 0), (1, 1, 0), (0, 0, 2)))
PROMPTS = [[0], [2, 1]]  # of other lengths, and with other laws behind them
V = 3
DEPTH_1 = ProposalPolicy(Layout.DENSE, 1, 1.0)
DEPTH_2 = ProposalPolicy(Layout.SPARSE, 2, 1.0, support=2)
OPTIONS: dict[str, Any] = {"top_k": 0}
SEED = 7


class Calls:
    """Calls of the hook with both prompts, by one drafter that takes both at a time."""

    def __init__(self, policy: ProposalPolicy, length: int) -> None:
        self.words = ProposalTree()
        tokenizer = tiny_tokenizer(V)
        program = DrafterProgram(
            HfDraftEngine(DRAFTER, tokenizer, identity=b"d" * 32),
            DrafterConfig(max_sessions=2, max_slots=2, max_support=V),
            source=self.words,
        )
        engine = HfTargetEngine(TARGET, tokenizer, identity=b"t" * 32)
        self.drafter = LocalDrafter(program, engine, audit=False)
        self.options = {"policy": policy, "max_new_tokens": length, **OPTIONS}
        self.accepted = self.rejected = 0

    def __call__(self) -> tuple[Text, ...]:
        reports: list[Report] = []
        texts = run(
            TARGET,
            PROMPTS,
            self.drafter,
            do_sample=True,
            seed=SEED,
            reports=reports,
            **self.options,
        )
        assert not any(report.misses for report in reports)
        self.accepted += sum(report.accepted for report in reports)
        self.rejected += sum(report.rejected for report in reports)
        return tuple(tuple(row) for row in texts[:, max(map(len, PROMPTS)) :].tolist())


def laws_alone(length: int) -> list[dict[Text, Fraction]]:
    return [own_law(TARGET, prompt, length, lambda: OPTIONS) for prompt in PROMPTS]


def test_texts_of_one_call_have_the_product_of_the_laws_that_they_have_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[int] = []

    def counting(model: Any, questions: Any) -> Any:
        packed.append(len(questions))
        return score_together(model, questions)

    monkeypatch.setattr(hook, "score_together", counting)
    calls = Calls(DEPTH_1, 2)
    law = law_of_calls(monkeypatch, calls.words, calls)
    assert calls.accepted
    assert calls.rejected
    assert 2 in packed
    assert law == product_of(laws_alone(2))


@pytest.mark.parametrize("row", [0, 1])
def test_a_text_has_its_own_law_whatever_the_text_beside_it_has_drawn(
    row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proposals of two; all words of one text, the other's are fixed."""
    beside = KeyedWords(RequestKey(SEED + row))
    calls = Calls(DEPTH_2, 3)
    calls.words.only = RequestKey(SEED, row).proposal_key

    def words(tree: WordTree, at: int) -> Any:
        return KeyedTree(tree, -1) if at == row else beside

    law: dict[Text, Fraction] = {}
    for texts, mass in law_of_calls(monkeypatch, calls.words, calls, sources=words).items():
        law[texts[row]] = law.get(texts[row], Fraction(0)) + mass
    assert calls.accepted
    assert calls.rejected
    assert law == laws_alone(3)[row]


def judged_by_another_row(kernels: Any, scores: Any, rounds: Any) -> Any:
    """The rounds of a pass are held against one another's rows."""
    return judge(kernels, scores.flip(0), rounds)


def scored_for_another(model: Any, questions: Any) -> Any:
    """Rows of a pass come back in another order of their questions."""
    rows = score_together(model, questions)
    counts = [len(drafts) + 1 for _, _, drafts in questions]
    return torch.cat(torch.split(rows, counts)[::-1])


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [(together, "judge", judged_by_another_row), (hook, "score_together", scored_for_another)],
    ids=["judged by another row", "scored for another row"],
)
def test_a_mutant_that_mixes_up_rows_has_another_law(
    module: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, mutant)
    calls = Calls(DEPTH_1, 2)
    law = law_of_calls(monkeypatch, calls.words, calls)
    assert sum(law.values()) == 1
    assert law != product_of(laws_alone(2))


@dataclass(frozen=True)
class SameWords:
    """Words that do not know whose they are, nor where the prompt ended."""

    tree: WordTree

    def words(self, address: Address) -> Iterator[int]:
        """The words of the round and domain."""
        return self.tree.words(replace(address, position=0), -1)


def test_a_mutant_that_gives_texts_the_same_words_has_another_joint_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each text alone would have its own law: only their joint law shows it."""
    calls = Calls(DEPTH_1, 2)
    law = law_of_calls(monkeypatch, calls.words, calls, sources=lambda tree, row: SameWords(tree))
    assert law != product_of(laws_alone(2))
