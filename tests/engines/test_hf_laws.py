"""The law of ``model.generate`` with a drafter, enumerated over all words through real models.

The models are Llamas whose attention and feed-forward parts add nothing, so that the next token's
probabilities are a table of halves and quarters by the last token alone, up to the rounding of the
model's own arithmetic. Each word stands for its cell of the grid by the cell's middle, which no
such rounding reaches; the law that comes out is exact.
"""

from __future__ import annotations

from typing import Any

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine
from draftwire.verifier.local import LocalDrafter
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import tiny_tokenizer
from tests.engines.enumerated_laws import ProposalTree, Table, law_of_calls, model_of, own_law
from tests.engines.hook_calls import run

V = 3

# Rows by the last token, in parts of GRID: far apart, with zeros where the other has mass.
TARGET: Table = ((1, 1, 0), (0, 1, 1), (1, 0, 1))
DRAFTER: Table = ((0, 1, 1), (1, 1, 0), (0, 0, 2))


@pytest.mark.parametrize(
    ("policy", "length", "options"),
    [
        (ProposalPolicy(Layout.DENSE, 2, 1.0), 3, {}),
        (ProposalPolicy(Layout.SPARSE, 2, 1.0, support=2), 2, {}),
        (ProposalPolicy(Layout.SPARSE, 2, 1.0, support=1), 2, {"top_k": 2}),
        (ProposalPolicy(Layout.DENSE, 1, 1.0), 3, {"bad_words_ids": [[2, 0]]}),
    ],
    ids=["dense", "sparse", "sparse top-k", "bad words"],
)
def test_generate_with_a_drafter_has_the_law_of_generate_alone(
    monkeypatch: pytest.MonkeyPatch, policy: ProposalPolicy, length: int, options: dict[str, Any]
) -> None:
    target, drafter, prompt = model_of(TARGET), model_of(DRAFTER), [0]
    words = ProposalTree()
    tokenizer = tiny_tokenizer(V)
    program = DrafterProgram(
        HfDraftEngine(drafter, tokenizer, identity=b"d" * 32),
        DrafterConfig(max_support=V),
        source=words,
    )
    options = {"top_k": 0, **options}
    engine = HfTargetEngine(target, tokenizer, identity=b"t" * 32)
    drafted = 0
    with LocalDrafter(program, engine, audit=False) as local:

        def text() -> tuple[int, ...]:
            nonlocal drafted
            reports: list[Any] = []
            ids = run(
                target,
                [prompt],
                local,
                do_sample=True,
                max_new_tokens=length,
                policy=policy,
                reports=reports,
                **options,
            )
            drafted += reports[0].accepted
            return tuple(ids[0, len(prompt) :].tolist())

        law = law_of_calls(monkeypatch, words, text)
    assert drafted
    assert sum(law.values()) == 1
    assert law == own_law(target, prompt, length, lambda: options)
