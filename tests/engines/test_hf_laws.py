"""The law of ``model.generate`` with a drafter, enumerated over all words through real models.

The models are Llamas whose attention and feed-forward parts add nothing, so that the next token's
probabilities are a table of halves and quarters by the last token alone, up to the rounding of the
model's own arithmetic. Each word stands for its cell of the grid by the cell's middle, which no
such rounding reaches; the law that comes out is exact.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, hook
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import tiny_tokenizer
from testing.toys.enumeration import WordTree, law_of
from tests.engines.hook_calls import run

V = 3
Table = tuple[tuple[int, ...], ...]
Law = dict[tuple[int, ...], Fraction]

# Rows by the last token, in parts of GRID: far apart, with zeros where the other has mass.
GRID = 2
TARGET: Table = ((1, 1, 0), (0, 1, 1), (1, 0, 1))
DRAFTER: Table = ((0, 1, 1), (1, 1, 0), (0, 0, 2))


def model_of(table: Table) -> Any:
    """Return a Llama whose softmax after token t is ``table[t]`` divided by its sum."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        rms_norm_eps=1e-12,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval().double()
    layer = model.model.layers[0]
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(V, 4))
        rows = torch.tensor(table, dtype=torch.float64)
        # The norm before the head makes the one in a row of four a two; e^-120 is no ticket.
        logits = (rows / rows.sum(1, keepdim=True)).log().clamp(min=-120.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, :V] = logits.T / 2
    return model


def own_law(model: Any, prompt: list[int], length: int, **options: Any) -> Law:
    """The law of ``model.generate`` alone: the product of the probabilities that it samples from,
    each on the grid, which they are near to within their own rounding."""
    law: Law = {}
    for text in product(range(V), repeat=length):
        mass = Fraction(1)
        for place in range(length):
            scores = run(
                model,
                [[*prompt, *text[:place]]],
                do_sample=True,
                max_new_tokens=1,
                output_scores=True,
                return_dict_in_generate=True,
                **options,
            ).scores[0][0]
            share = float(torch.softmax(scores.double(), 0)[text[place]])
            assert abs(share * GRID - round(share * GRID)) < 1e-6
            mass *= Fraction(round(share * GRID), GRID)
        if mass:
            law[text] = mass
    return law


class Words:
    """The proposal's words, from whichever tree is walked now."""

    tree: WordTree

    def __call__(self, key: int) -> WordTree:
        return self.tree


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
    words = Words()
    tokenizer = tiny_tokenizer(V)
    program = DrafterProgram(
        HfDraftEngine(drafter, tokenizer, identity=b"d" * 32),
        DrafterConfig(max_support=V),
        source=words,
    )
    options = {"top_k": 0, "do_sample": True, **options}
    engine = HfTargetEngine(target, tokenizer, identity=b"t" * 32)
    with LocalDrafter(program, engine, audit=False) as local:
        drafted = 0

        def text_of(tree: WordTree) -> tuple[int, ...]:
            nonlocal drafted
            words.tree = tree
            monkeypatch.setattr(hook, "generate", partial(generate, words=tree))
            reports: list[Any] = []
            ids = run(
                target,
                [prompt],
                local,
                max_new_tokens=length,
                policy=policy,
                reports=reports,
                **options,
            )
            drafted += reports[0].accepted
            return tuple(ids[0, len(prompt) :].tolist())

        law = law_of(text_of, GRID, middle=True)
    del options["do_sample"]
    assert drafted
    assert sum(law.values()) == 1
    assert law == own_law(target, prompt, length, **options)
