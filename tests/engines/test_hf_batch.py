"""Forward passes for several sequences: the bits of each are those that it has alone."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from draftwire.drafter.propose import DraftJob, propose
from draftwire.engines.hf import HfDraftEngine, embedded_folder, load_folder
from draftwire.engines.hf.batch import BatchedModel, batched
from draftwire.engines.hf.sequence import CachedSequence
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout
from testing.harness.tiny_models import fresh_logits, tiny_llama, tiny_sliding, tiny_tokenizer

V = 16
SHAPE = {
    "vocab_size": V,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}


@functools.cache
def with_biases() -> Any:
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.bias.normal_()
    return model


@functools.cache
def in_bfloat16() -> Any:
    return copy.deepcopy(tiny_llama(V)).to(torch.bfloat16)


MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "llama": (lambda: tiny_llama(V), 0),
    "llama, passes of a fixed shape": (lambda: tiny_llama(V), 16),
    "biases": (with_biases, 0),
    "bfloat16": (in_bfloat16, 0),
    "a sliding window, binary64": (lambda: tiny_sliding(V, 4), 0),
    "a sliding window, passes of a fixed shape": (lambda: tiny_sliding(V, 4), 16),
    "the embedded drafter": (lambda: load_folder(embedded_folder("drafter")).model, 0),
}


@functools.cache
def made(name: str) -> tuple[Any, BatchedModel]:
    build, fixed = MODELS[name]
    model = build()
    together = batched(model, fixed_rows=fixed)
    assert together is not None
    return model, together


def life(session: int) -> list[tuple[int, list[int]]]:
    """What one session does: how far it is rewound, and what is then fed; at most 40 tokens."""
    source = random.Random(session)
    turns, length = [], 0
    for _ in range(8):
        keep = source.randint(max(length - 3, 0), length)
        feed = [source.randrange(V) for _ in range(source.choice((1, 1, 1, 2, 5)))]
        turns.append((keep, feed))
        length = keep + len(feed)
    return turns


def rows_of(model: Any, together: BatchedModel, order: Callable[[int], Sequence[int]]) -> Any:
    """Live the lives of sessions in companies; return each session's rows, by session."""
    sequences = {session: CachedSequence(model) for session in range(6)}
    lives = {session: life(session) for session in sequences}
    rows: dict[int, list[bytes]] = {session: [] for session in sequences}
    turn = 0
    while any(lives.values()):
        company = [session for session in order(turn) if lives[session]]
        turn += 1
        batch = []
        for session in company:
            keep, feed = lives[session].pop(0)
            sequences[session].truncate(keep)
            batch.append((sequences[session], feed))
        if batch:
            for session, row in zip(company, together.forward(batch), strict=True):
                rows[session].append(row.numpy().tobytes())
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_a_session_has_the_same_bits_alone_and_in_every_company(name: str) -> None:
    """Sessions of other lengths, other feeds, rewound at other times, in and out of step."""
    model, together = made(name)
    alone = rows_of(model, together, lambda turn: [turn % 6])
    assert rows_of(model, together, lambda turn: range(6)) == alone
    assert rows_of(model, together, lambda turn: [5, 2, 0, 4, 1, 3]) == alone
    source = random.Random(9)
    shuffled = rows_of(model, together, lambda turn: source.sample(range(6), source.randint(1, 6)))
    assert shuffled == alone


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_those_of_a_pass_without_any_cache(name: str) -> None:
    model, together = made(name)
    texts = {0: [3, 7, 2, 9, 4, 4, 8, 5, 6, 2, 3, 9, 7, 4], 1: [5, 1], 2: [9, 8, 7, 6, 5, 4, 3]}
    sequences = {index: CachedSequence(model) for index in texts}
    at = dict.fromkeys(texts, 0)
    for size in (1, 3, 1, 2, 7):
        batch = [
            (sequences[index], text[at[index] : at[index] + size])
            for index, text in texts.items()
            if at[index] < len(text)
        ]
        living = [index for index, text in texts.items() if at[index] < len(text)]
        rows = together.forward(batch)
        for index, row in zip(living, rows, strict=True):
            at[index] = sequences[index].length
            expected = fresh_logits(model, texts[index][: at[index]])[-1]
            # Of logits of size 10; the largest measured distance is 7e-6, in bfloat16 it is 0.06.
            atol = 0.3 if name == "bfloat16" else 5e-5
            np.testing.assert_allclose(row.numpy(), expected, atol=atol, rtol=0)
    assert all(at[index] == len(text) for index, text in texts.items())


def test_weights_are_shared_and_the_model_is_left_as_it_was() -> None:
    model = copy.deepcopy(tiny_llama(V))
    before = model.config._attn_implementation
    together = batched(model)
    assert together is not None
    assert model.config._attn_implementation == before
    assert all(type(layer.mlp.up_proj) is torch.nn.Linear for layer in model.model.layers)
    theirs = {each.data_ptr() for each in model.parameters()}
    assert {each.data_ptr() for each in together.model.parameters()} == theirs


def test_a_pass_that_fails_leaves_every_sequence_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, together = made("llama")
    sequences = [CachedSequence(model) for _ in range(3)]
    untouched = [CachedSequence(model) for _ in range(3)]
    for each in (sequences, untouched):
        together.forward([(one, [3, 4 + at]) for at, one in enumerate(each)])

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of memory")

    # The first layer has taken the tokens when the second fails.
    with monkeypatch.context() as patch:
        patch.setattr(together.model.model.layers[1], "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            together.forward([(one, [1, 2]) for one in sequences])
    assert [one.length for one in sequences] == [2, 2, 2]
    assert all(set(one.layer_lengths()) == {2} for one in sequences)
    rows = together.forward([(one, [7]) for one in sequences])
    assert torch.equal(rows, together.forward([(one, [7]) for one in untouched]))


def llama_with(**other: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **other)).eval()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "layers of another kind": (
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=16, n_layer=1, n_head=2)).eval(),
        "no linear layer",
    ),
    "experts": (
        lambda: MixtralForCausalLM(
            MixtralConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1)
        ).eval(),
        "experts",
    ),
    "capped attention": (
        lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8)).eval(),
        "capped",
    ),
    "positions that follow the longest": (
        lambda: llama_with(
            rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
        ),
        "positions",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_rows_would_depend_on_their_company_is_run_row_by_row(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    build, said = REFUSED[name]
    model = build()
    engine = HfDraftEngine(model, tiny_tokenizer(V), identity=bytes(32))
    assert not engine.batches
    assert said in caplog.text
    contexts = [engine.open() for _ in range(2)]
    rows = engine.forward([(contexts[0], [3, 4]), (contexts[1], [5])])
    np.testing.assert_allclose(rows[0], fresh_logits(model, [3, 4])[-1], atol=1e-4)
    np.testing.assert_allclose(rows[1], fresh_logits(model, [5])[-1], atol=1e-4)


class Leaky(BatchedModel):
    """A batched model in which the rows of a pass are not quite alone."""

    def forward(self, batch: Any) -> torch.Tensor:
        rows = super().forward(batch)
        return rows * (1 + 2e-7 * (len(batch) > 3))


class Other(BatchedModel):
    """A batched model that computes another function."""

    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch) * 1.01


@pytest.mark.parametrize(("kind", "said"), [(Leaky, "other bits"), (Other, "another function")])
def test_the_trial_finds_a_batch_that_is_not_what_it_should_be(
    kind: type[BatchedModel],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("draftwire.engines.hf.batch.BatchedModel", kind)
    assert batched(tiny_llama(V)) is None
    assert said in caplog.text


def test_a_prompt_has_its_own_pass_whatever_else_is_asked() -> None:
    """Long and short feeds in one call, in any order: the rows of each alone."""
    feeds = {0: list(range(12)), 1: [3], 2: [4, 5], 3: [1] * 9}

    def run(order: Sequence[int]) -> dict[int, bytes]:
        engine = HfDraftEngine(tiny_llama(V), tiny_tokenizer(V), identity=bytes(32))
        assert engine.batches
        contexts = {index: engine.open() for index in order}
        rows = engine.forward([(contexts[index], feeds[index]) for index in order])
        more = engine.forward([(contexts[index], [index]) for index in order])
        return {
            index: rows[at].numpy().tobytes() + more[at].numpy().tobytes()
            for at, index in enumerate(order)
        }

    together = run([0, 1, 2, 3])
    assert run([3, 2, 1, 0]) == together
    for index in feeds:
        assert run([index]) == {index: together[index]}


PROPOSALS = [
    ([3, 7, 2], ProposalPolicy(Layout.DENSE, 4, 1.0)),
    ([9] * 11, ProposalPolicy(Layout.SPARSE, 2, 0.7, support=5)),
    ([5], ProposalPolicy(Layout.SPARSE, 6, 1.3, support=32, top_k=7)),
    ([400, 401], ProposalPolicy(Layout.DENSE, 1, 0.0)),
    ([8, 8, 8, 8], ProposalPolicy(Layout.SPARSE, 5, 1.0, support=16, top_p=TOTAL // 2)),
]


def test_r13_permuting_the_sessions_of_a_batch_changes_no_token_and_no_count() -> None:
    """Own prefixes, depths, policies and words; alone, together, permuted, and with one withdrawn.

    Two rounds each: the second begins with what a correction leaves of the first.
    """
    engine = HfDraftEngine.from_folder(embedded_folder("drafter"))
    assert engine.batches

    def run(order: Sequence[int]) -> dict[int, list[tuple[list[int], list[bytes]]]]:
        contexts = {index: engine.open() for index in order}
        feeds = {index: PROPOSALS[index][0] for index in order}
        drawn: dict[int, list[tuple[list[int], list[bytes]]]] = {index: [] for index in order}
        for round in (1, 2):
            jobs = [
                DraftJob(contexts[i], feeds[i], PROPOSALS[i][1], 70 + i, 1, round, 30 * round)
                for i in order
            ]
            for index, draft in zip(order, propose(engine, jobs), strict=True):
                assert isinstance(draft, Draft)
                drawn[index].append((draft.tokens, [row.counts.tobytes() for row in draft.rows]))
                engine.truncate(contexts[index], len(PROPOSALS[index][0]))
                feeds[index] = [(draft.tokens[0] + 1) % engine.vocab_size]
        return drawn

    together = run(range(len(PROPOSALS)))
    for index in range(len(PROPOSALS)):
        assert run([index]) == {index: together[index]}
    for order in ([4, 2, 0, 3, 1], [1, 0, 3, 4, 2], [3, 0, 4]):
        assert run(order) == {index: together[index] for index in order}


def test_e49_a_session_whose_rows_are_nan_changes_no_bit_of_the_others() -> None:
    model = copy.deepcopy(tiny_llama(V))
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = torch.nan
    engine = HfDraftEngine(model, tiny_tokenizer(V), identity=bytes(32))
    assert engine.batches
    feeds = {0: [3, 7], 1: [3, 9], 2: [7]}
    alone = {index: engine.forward([(engine.open(), feed)])[0] for index, feed in feeds.items()}
    rows = engine.forward([(engine.open(), feed) for feed in feeds.values()])
    assert rows[1].isnan().all()
    for index in (0, 2):
        assert rows[index].numpy().tobytes() == alone[index].numpy().tobytes()
