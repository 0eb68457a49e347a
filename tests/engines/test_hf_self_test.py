"""The self-test: p of a position depends on what stands before it alone, or is refused."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    XLNetConfig,
    XLNetLMHeadModel,
)

from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, remote_speculative, self_test
from draftwire.engines.hf.rope import open_sequence, rope_border
from draftwire.engines.hf.self_test import BOUNDS, EXACT, SelfTest, require_conforming
from draftwire.engines.hf.self_test_cache import cache_folder
from draftwire.engines.hf.sequence import logits_width
from draftwire.errors import ConfigurationError, ModelError
from draftwire.verifier.generate import generate
from draftwire.verifier.sampling import Sampling
from testing.harness.tiny_models import fresh_logits, tiny_llama, tiny_tokenizer
from tests.engines.hook_calls import local_drafter

V = 64
SHAPE: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
BERT = {name: each for name, each in SHAPE.items() if name != "num_key_value_heads"}
BORDER = 32


def longrope(border: int = BORDER) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [8.0, 16.0, 24.0, 32.0],
        "original_max_position_embeddings": border,
        "factor": 256 / border,
    }


def phi3(border: int = BORDER) -> Any:
    return Phi3ForCausalLM(
        Phi3Config(
            rope_parameters=longrope(border), original_max_position_embeddings=border, **SHAPE
        )
    )


def llama(**other: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**{**SHAPE, **other}))


def gemma3() -> Any:
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(
        Gemma3TextConfig(head_dim=8, sliding_window=4, layer_types=kinds, **SHAPE)
    )


def made(make: Callable[[], Any]) -> Any:
    torch.manual_seed(3)
    return make().eval()


def quantised() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(
            llama().eval(), {torch.nn.Linear}, dtype=torch.qint8
        )


GOOD = {
    "llama": llama,
    "gemma3 with sliding windows": gemma3,
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(head_dim=8, **SHAPE)),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **SHAPE)
    ),
    "bert as a decoder": lambda: BertLMHeadModel(BertConfig(**BERT, is_decoder=True)),
    "M28 RoBERTa, told its positions as generate does": lambda: RobertaForCausalLM(
        RobertaConfig(**BERT, is_decoder=True)
    ),
    "phi3 far from the border": phi3,
    "phi3 across the border": lambda: phi3(14),
    "dynamic rope within its positions": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_model_whose_rows_depend_on_the_prefix_alone_passes(name: str) -> None:
    found = require_conforming(made(GOOD[name]), V)
    assert found.tails_bound == found.bound == EXACT or name == "mixtral"
    for figure in (found.tails, found.passes, found.generate):
        assert figure.variation < 1e-5 and figure.logit < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_arithmetic_has_a_bound_of_its_own_but_not_for_tails(dtype: torch.dtype) -> None:
    found = require_conforming(made(llama).to(dtype), V)
    assert found.bound == BOUNDS[dtype] and found.tails_bound == EXACT
    assert found.tails.variation == 0 < found.passes.variation < found.bound.variation


class BatchStatistics(torch.nn.Module):
    """A norm over all rows of a pass, in the place of one over each."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        spread = rows.std(1, keepdim=True, unbiased=False).clamp(min=0.1)
        return (rows - rows.mean(1, keepdim=True)) / spread


class Capacity(torch.nn.Module):
    """An expert that takes at most eight tokens of a pass, the largest ones."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        size = rows.norm(dim=-1, keepdim=True)
        least = size.sort(1, descending=True).values[:, min(8, rows.shape[1]) - 1][:, None]
        return torch.where(size >= least, 2 * rows, rows)


def with_norm(norm: torch.nn.Module) -> Any:
    model = llama()
    model.model.norm = norm
    return model


REFUSED = {
    "M2 dynamic quantisation": (quantised, "later tokens of the same pass.*quantised, takes its"),
    "M2 statistics of a pass": (lambda: with_norm(BatchStatistics()), "later tokens of the same"),
    "M2 experts with a capacity": (lambda: with_norm(Capacity()), "later tokens of the same pass"),
    "M28 BERT that sees both ways": (
        lambda: BertLMHeadModel(BertConfig(**BERT)),
        "later tokens of the same pass.*is_decoder=True",
    ),
    "M27 a model that has no cache": (
        lambda: OpenAIGPTLMHeadModel(
            OpenAIGPTConfig(
                vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3
            )
        ),
        "its cache holds none of the 17 positions",
    ),
    "M27 XLNet": (
        lambda: XLNetLMHeadModel(
            XLNetConfig(
                vocab_size=V, d_model=32, n_layer=2, n_head=2, d_inner=32, initializer_range=0.3
            )
        ),
        "later tokens of the same pass",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_m2_m27_m28_a_model_that_breaks_the_law_is_refused_with_the_figure(name: str) -> None:
    make, cause = REFUSED[name]
    model = made(make)
    with pytest.raises(ConfigurationError, match=cause) as caught:
        HfTargetEngine(model, tiny_tokenizer(V), identity=bytes(32))
    assert "in total variation" in str(caught.value) and "bound 1.0e-04" in str(caught.value)
    ids = torch.tensor([[3, 7, 2]])
    with pytest.raises(ConfigurationError, match=cause):
        model.generate(ids, max_new_tokens=2, custom_generate=remote_speculative)


def test_m2_the_logits_of_a_quantised_head_are_counted() -> None:
    assert logits_width(made(quantised)) == V


def test_a_drafter_that_fails_is_used_and_said(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(3)
    drafter = made(REFUSED["M27 a model that has no cache"][0])
    with caplog.at_level(logging.WARNING, "draftwire.drafter"):
        HfDraftEngine(drafter, tiny_tokenizer(V), identity=bytes(32))
    assert "few of its drafts may be accepted" in caplog.text
    assert "its cache holds none" in caplog.text


TEXT = [(7 * index + index * index) % (V - 3) + 3 for index in range(60)]


def alone(model: Any, length: int) -> torch.Tensor:
    return torch.from_numpy(fresh_logits(model, TEXT[:length])[-1])


@pytest.mark.parametrize("first", [1, 20, 31, 32, 33, 40])
@pytest.mark.parametrize("step", [1, 3, 6])
def test_m1_rows_across_the_border_are_those_of_each_prefix_alone(first: int, step: int) -> None:
    model = made(phi3)
    sequence = open_sequence(model)
    fed = TEXT[:first]
    rows = list(sequence.forward(fed, 1))
    lengths = [first]
    while len(fed) < 44:
        new = TEXT[len(fed) : len(fed) + step]
        wrong = [(token + 1) % V for token in new]
        sequence.forward(wrong, len(wrong))  # drafts that are rejected, across the border as well
        sequence.truncate_to_prefix_of([*fed, *new])
        assert sequence.tokens == tuple(fed)
        rows += sequence.forward(new, len(new))
        fed = [*fed, *new]
        lengths += range(len(fed) - len(new) + 1, len(fed) + 1)
    for length, row in zip(lengths, rows, strict=True):
        torch.testing.assert_close(row, alone(model, length), atol=2e-5, rtol=0)


def test_m1_a_failed_pass_across_the_border_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = made(phi3)
    sequence = open_sequence(model)
    sequence.forward(TEXT[:30])
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        calls = iter([model.forward])
        patch.setattr(model, "forward", lambda **given: next(calls, fail)(**given))
        sequence.forward(TEXT[30:36], 6)
    assert sequence.tokens == tuple(TEXT[:30]) and sequence.layer_lengths() == [30, 30]
    rows = sequence.forward(TEXT[30:36], 6)
    for at, row in enumerate(rows):
        torch.testing.assert_close(row, alone(model, 31 + at), atol=2e-5, rtol=0)


def fail(**given: Any) -> Any:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("drafted", [False, True])
def test_m1_the_hook_writes_the_text_of_generate_across_the_border(drafted: bool) -> None:
    model = made(phi3)
    ids = torch.tensor([TEXT[:24]])
    call: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **call)
    reports: list[Any] = []
    drafter = local_drafter(model, made(phi3), vocab_size=V) if drafted else None
    text = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        custom_generate=remote_speculative,
        drafter=drafter,
        seed=1,
        reports=reports,
        **call,
    )
    assert torch.equal(text, expected)
    if drafted:
        assert reports[0].accepted > 12


def test_m1_a_model_whose_generate_does_not_read_again_stays_within_its_border() -> None:
    model = made(lambda: llama(rope_parameters=longrope()))
    border = rope_border(model)
    assert border is not None and (border.length, border.read_again) == (BORDER, False)
    engine = HfTargetEngine(model, tiny_tokenizer(V), identity=bytes(32))
    assert engine.max_context == BORDER
    ids = torch.tensor([TEXT[:20]])
    call: dict[str, Any] = {"custom_generate": remote_speculative, "pad_token_id": 0}
    assert model.generate(ids, max_new_tokens=12, **call).shape[1] == BORDER
    with pytest.raises(ConfigurationError, match="longrope switches its table at 32 tokens"):
        model.generate(ids, max_new_tokens=13, **call)
    with generate(engine, None, TEXT[:20], Sampling(seed=1, max_tokens=12)) as running:
        assert len(list(running)) == 12


def test_m1_dynamic_rope_is_refused_beyond_its_positions() -> None:
    model = made(GOOD["dynamic rope within its positions"])
    border = rope_border(model)
    assert border is not None and (border.kind, border.length) == ("dynamic", 256)
    ids = torch.tensor([TEXT[:20]])
    with pytest.raises(ConfigurationError, match="rope type dynamic switches its table at 256"):
        model.generate(ids, max_new_tokens=240, custom_generate=remote_speculative)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How often a model was tried; every model counts as large."""
    tried: list[int] = []
    test = self_test.Probe.of

    def probe(model: Any, vocab_size: int) -> Any:
        tried.append(vocab_size)
        return test(model, vocab_size)

    monkeypatch.setattr(self_test.Probe, "of", probe)
    monkeypatch.setattr(self_test, "REMEMBERED_FROM", 0)
    monkeypatch.setenv("DRAFTWIRE_CACHE_DIR", str(tmp_path / "cache"))
    return tried


def test_the_figures_of_a_large_model_are_kept_by_identity(counted: list[int]) -> None:
    def figures(seed: bytes, model: Any = None) -> SelfTest:
        return require_conforming(made(llama) if model is None else model, V, seed * 32)

    first = figures(b"a")
    assert figures(b"a") == first and len(counted) == 1
    figures(b"b")
    figures(b"a", made(llama).bfloat16())
    figures(b"a", made(lambda: llama(attn_implementation="eager")))
    assert len(counted) == 4
    files = sorted(cache_folder().iterdir())
    assert len(files) == 4 and all(each.suffix == ".json" for each in files)
    worse = json.loads(files[0].read_text())
    worse["passes"]["variation"] = 0.5  # what no self-test lets pass
    for damage in (
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"tails": 1}',
        b"\xff\xfe",
        json.dumps(worse).encode(),
    ):
        for each in files:
            each.write_bytes(damage)
        before = len(counted)
        assert figures(b"a") == figures(b"a") == first and len(counted) == before + 1


def test_a_model_without_an_identity_or_a_place_to_keep_it_is_tried_again(
    counted: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for _ in range(2):
        require_conforming(made(llama), V, bytes(32))  # zero: no identity
    assert len(counted) == 2
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DRAFTWIRE_CACHE_DIR", str(tmp_path / "file"))
    for _ in range(2):
        require_conforming(made(llama), V, b"a" * 32)
    assert len(counted) == 4


def test_a_model_object_is_tried_once() -> None:
    model = tiny_llama(16, seed=77)
    assert require_conforming(model, 16) is require_conforming(model, 16)


def test_a_model_that_cannot_be_read_is_refused_in_a_sentence() -> None:
    model = made(llama)
    model.forward = fail
    with pytest.raises(ModelError, match=r"token by token \(RuntimeError: out of memory\)"):
        require_conforming(model, V)
