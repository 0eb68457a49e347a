"""Laws of ``model.generate`` with a drafter, over all words, beside its own; for the law tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftwire.engines.hf import hook
from draftwire.exact.words import Address, ProposalWords
from draftwire.verifier.generate import generate
from testing.harness.tiny_models import stepwise
from testing.toys.enumeration import WordTree, law_of

Table = tuple[tuple[int, ...], ...]
Text = tuple[int, ...]
Law = dict[Text, Fraction]

GRID = 2  # parts of one that probabilities are multiples of


def model_of(table: Table) -> Any:
    """Return a Llama whose softmax after token t is ``table[t]`` divided by its sum.

    Its attention and feed-forward parts add nothing, so that the last token alone decides.
    """
    vocab_size = len(table)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
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
        model.model.embed_tokens.weight.copy_(torch.eye(vocab_size, 4))
        rows = torch.tensor(table, dtype=torch.float64)
        # The norm before the head makes the one in a row of four a two; e^-120 is no ticket.
        logits = (rows / rows.sum(1, keepdim=True)).log().clamp(min=-120.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, :vocab_size] = logits.T / 2
    return model


def own_law(model: Any, prompt: list[int], length: int, arguments: Callable[[], Any]) -> Law:
    """The law of ``model.generate`` alone: the product of the probabilities that it samples from,
    each on the grid, which they are near to within their own rounding.

    arguments: of a call, made anew for each, with processors that have seen nothing.
    """
    law: Law = {(): Fraction(1)}
    for place in range(length):
        longer: Law = {}
        for text, mass in law.items():
            call = {"do_sample": True, "max_new_tokens": place + 1, **arguments()}
            for token, p in enumerate(stepwise(model, prompt, [*text, 0], call)[place]):
                share = Fraction(round(float(p) * GRID), GRID)
                assert abs(float(p) - share) < 1e-6
                if share:
                    longer[*text, token] = mass * share
        law = longer
    return law


@dataclass(frozen=True)
class KeyedTree:
    """The words of one key, from a tree that is walked for several of them together."""

    tree: WordTree
    key: int

    def words(self, address: Address) -> Iterator[int]:
        """The words of an address under this key."""
        return self.tree.words(address, self.key)


class ProposalTree:
    """The proposals' words, from whichever tree is walked now; a key of its own for each text.

    only: the key whose words are walked, where those of others stay as they are; None = all.
    """

    tree: WordTree
    only: int | None = None

    def __call__(self, key: int) -> Any:
        return KeyedTree(self.tree, key) if self.only in (None, key) else ProposalWords(key)


def law_of_calls(
    patch: pytest.MonkeyPatch,
    proposals: ProposalTree,
    call: Callable[[], Any],
    *,
    sources: Callable[[WordTree, int], Any] = lambda tree, row: KeyedTree(tree, -1 - row),
) -> dict[Any, Fraction]:
    """The law of what a call of the hook returns, over all words of both sides.

    sources: from the tree and the number of a text of the call to the verifier's words for it; by
    default each has words of its own.
    """

    def result(tree: WordTree) -> Any:
        begun = 0

        def begin(*arguments: Any, **options: Any) -> Any:
            nonlocal begun
            begun += 1
            return generate(*arguments, **options, words=sources(tree, begun - 1))

        proposals.tree = tree
        patch.setattr(hook, "generate", begin)
        return call()

    return law_of(result, GRID, middle=True)


def product_of(laws: list[Law]) -> dict[tuple[Text, ...], Fraction]:
    """The law of several texts that know nothing of one another."""
    joint: dict[tuple[Text, ...], Fraction] = {(): Fraction(1)}
    for law in laws:
        joint = {
            (*texts, text): mass * share
            for texts, mass in joint.items()
            for text, share in law.items()
        }
    return joint
