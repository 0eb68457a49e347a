"""The law of the text with a DSpark drafter, enumerated over all words; and the one that ships."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.dspark.backbone import BlockDrafter
from draftwire.engines.dspark.engine import BlockContext, BlockDraftEngine
from draftwire.engines.dspark.formats import described
from draftwire.engines.hf import HfTargetEngine, embedded_folder
from draftwire.engines.hf.loader import load_tokenizer
from draftwire.engines.registry import load_drafter
from draftwire.verifier.generate import Kind, generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.policy import policy_like
from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import tiny_tokenizer
from testing.toys.block_drafters import DEEPSPEC
from testing.toys.enumeration import WordTree, law_of
from testing.toys.models import HASH, ToyTarget
from tests.verifier.test_laws import Shared, dense, targets_law

ROWS = ((1, 1, 0), (0, 1, 1), (2, 0, 0))  # of q after each token, in halves


def drafter_of(kind: str) -> BlockDrafter:
    """A drafter whose every row is ROWS of the token before it, by its Markov head alone."""
    size = len(ROWS)
    changes = {"vocab_size": size, "mask_token_id": 0, "markov_rank": size, "block_size": 3}
    description = described({**DEEPSPEC, **changes, "markov_head_type": kind})
    assert description is not None
    drafter = BlockDrafter(description.shape).eval().requires_grad_(False)
    head = drafter.markov_head
    assert head is not None
    drafter.lm_head.weight.zero_()
    head.markov_w1.weight.copy_(torch.eye(size))
    logits = torch.tensor(ROWS).div(2).log().clamp(min=-120.0)
    if kind == "vanilla":
        head.markov_w2.weight.copy_(logits.T)
    else:  # a gate of one half, whatever it sees
        head.gate_proj.weight.zero_()
        head.gate_proj.bias.zero_()
        head.markov_w2.weight.copy_(2 * logits.T)
    return drafter


class SameIds(BlockDraftEngine):
    """The toys' tokenizer has no files."""

    def __init__(self, drafter: BlockDrafter) -> None:
        super().__init__(drafter, tiny_tokenizer(len(ROWS)), identity=bytes(32))
        self.tokenizer_hash = self.id_map_hash = HASH
        self.vocab_size = len(ROWS)


def p(context: tuple[int, ...]) -> tuple[int, ...]:
    """Another distribution than q, in halves."""
    return ((1, 0, 1), (1, 1, 0), (0, 1, 1))[(context[-1] + len(context)) % 3]


@pytest.mark.parametrize("kind", ["vanilla", "gated"])
def test_the_law_is_the_targets_with_a_block_drafter(kind: str) -> None:
    engine, target = SameIds(drafter_of(kind)), ToyTarget(p, len(ROWS))
    shared, kinds = Shared(), set[Kind]()
    program = DrafterProgram(engine, DrafterConfig(), source=shared)
    with LocalDrafter(program, target, audit=False) as client:

        def run(tree: WordTree) -> tuple[int, ...]:
            shared.tree = tree
            sampling = Sampling(seed=0, max_tokens=4)
            made = list(generate(target, client, (0,), sampling, dense(3), words=tree))
            kinds.update(each.kind for each in made)
            return tuple(each.token for each in made)

        law: dict[tuple[int, ...], Fraction] = law_of(run, 2, middle=True)
    assert law == targets_law(p, (0,), 4, len(ROWS))
    assert kinds >= {Kind.ACCEPTED, Kind.CORRECTED, Kind.BONUS}
    assert not engine.open_sessions


# The one that ships ------------------------------------------------------------------------------

PROMPTS = ("import os\nimport sys\n\n\ndef main(", "class Queue:\n    def __init__(self", "def f(")


@pytest.fixture(scope="module")
def target() -> HfTargetEngine:
    return HfTargetEngine.from_folder(embedded_folder("target"))


class Blind(BlockDraftEngine):
    """The same drafter, which looks at no state."""

    def take_states(self, context: BlockContext, first: int, rows: Any) -> None:
        """Leave them out."""


def tokens_a_pass(target: HfTargetEngine, engine: BlockDraftEngine, temperature: float) -> float:
    tokenizer = load_tokenizer(embedded_folder("target"))
    policy = policy_like(Layout.SPARSE, 6, 256, target.vocab_size, temperature=temperature)
    tokens = rounds = 0
    program = DrafterProgram(engine, DrafterConfig(max_support=256))
    with LocalDrafter(program, target, max_support=256) as drafter:
        for seed, prompt in enumerate(PROMPTS):
            sampling = Sampling(temperature=temperature, seed=seed, max_tokens=64)
            ids = tokenizer(prompt)["input_ids"]
            with generate(target, drafter, ids, sampling, policy) as text:
                tokens += sum(1 for _ in text)
            assert not text.report.misses
            rounds += text.report.rounds
    return tokens / rounds


def test_the_embedded_drafter_is_worth_its_pass_and_its_states_are_why(
    target: HfTargetEngine,
) -> None:
    folder = embedded_folder("dspark")
    engine = load_drafter(folder, device="cpu")
    assert isinstance(engine, BlockDraftEngine)
    assert engine.max_depth == 6
    with_states = tokens_a_pass(target, engine, 0.6)
    blind = Blind.from_folder(folder, load_tokenizer(folder))
    without = tokens_a_pass(target, blind, 0.6)
    assert with_states > 2.3
    assert without < 0.8 * with_states
