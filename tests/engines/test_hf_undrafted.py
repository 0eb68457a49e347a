"""Calls with inputs beside token ids run undrafted, with generate's own text and a note."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import (
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from draftwire.errors import ConfigurationError
from draftwire.verifier.report import Report
from draftwire.verifier.stop import Finish
from tests.engines.hook_calls import PROMPT, AfterThree, V, Written, local_drafter, run

ONES = torch.ones(1, len(PROMPT), dtype=torch.long)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8}
SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 8}


@functools.cache
def _gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=V,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.6,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


@functools.cache
def _llava() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    text = LlamaConfig(
        vocab_size=V,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.6,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
        **sizes,
    )
    vision = CLIPVisionConfig(
        num_attention_heads=2, image_size=8, patch_size=4, projection_dim=16, **sizes
    )
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=15, vision_feature_layer=-1
    )
    return LlavaForConditionalGeneration(config).eval()


def _undrafted(report: Report, name: str, tokens: int) -> None:
    assert (report.tokens, report.target_only_rounds, report.drafted) == (tokens, tokens, 0)
    assert any(name in note and "not drafted" in note for note in report.notes)


@pytest.mark.parametrize("types", [ONES, torch.zeros_like(ONES)], ids=["ones", "zeros"])
def test_m19_token_types_are_read_and_the_call_is_not_drafted(types: torch.Tensor) -> None:
    """Case M19: zeros too, which GPT-2 does not read as no types."""
    model, reports = _gpt2(), list[Report]()
    drafter = local_drafter(model)
    expected = run(model, [PROMPT], token_type_ids=types, **GREEDY)
    text = run(model, [PROMPT], drafter, token_type_ids=types, reports=reports, **GREEDY)
    assert torch.equal(text, expected)
    _undrafted(reports[0], "token_type_ids", 8)
    assert reports[0].prompt_tokens == len(PROMPT)
    assert reports[0].finish is Finish.MAX_TOKENS
    # and the same drafter goes on drafting for calls of ids alone
    assert torch.equal(
        run(model, [PROMPT], drafter, seed=1, reports=reports, **GREEDY),
        run(model, [PROMPT], **GREEDY),
    )
    assert reports[1].drafted
    assert not reports[1].notes


def test_m19_an_image_is_read_and_the_call_is_not_drafted() -> None:
    """Case M19: with another image another text."""
    model = _llava()
    drafter = local_drafter(model)
    prompt = [3, *[15] * 4, 7]
    texts = []
    for seed in (0, 5):
        pixels = 9 * torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        reports: list[Report] = []
        expected = run(model, [prompt], pixel_values=pixels, **GREEDY)
        text = run(model, [prompt], drafter, pixel_values=pixels, reports=reports, **GREEDY)
        assert torch.equal(text, expected)
        _undrafted(reports[0], "pixel_values", 8)
        texts.append(text)
    assert not torch.equal(*texts)
    reports = []  # and without one it is drafted
    text = run(model, [PROMPT], drafter, seed=1, reports=reports, **GREEDY)
    assert torch.equal(text, run(model, [PROMPT], **GREEDY))
    assert reports[0].drafted


def test_m19_a_sampled_text_is_that_of_generate_or_of_its_seed() -> None:
    """Case M19: without a seed torch's generator is drawn from, with one it is left alone."""
    model = _gpt2()
    drafter = local_drafter(model)
    torch.manual_seed(3)
    expected = run(model, [PROMPT], token_type_ids=ONES, **SAMPLED)
    torch.manual_seed(3)
    assert torch.equal(run(model, [PROMPT], drafter, token_type_ids=ONES, **SAMPLED), expected)
    before = torch.get_rng_state()
    first, again, other = (
        run(model, [PROMPT], drafter, token_type_ids=ONES, seed=seed, **SAMPLED)
        for seed in (2**128 - 1, 2**128 - 1, 7)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(ConfigurationError, match="seed"):
        run(model, [PROMPT], drafter, token_type_ids=ONES, seed=-1, **SAMPLED)


def test_m19_rows_are_counted_to_their_own_ends() -> None:
    """Case M19: a batch with padding; one row ends before the other."""
    model, reports = _gpt2(), list[Report]()
    prompts = [PROMPT, [4, 2]]
    types = torch.ones(2, len(PROMPT), dtype=torch.long)
    plain = run(model, prompts, token_type_ids=types, **GREEDY)[:, len(PROMPT) :].tolist()
    end = next(token for token in plain[0] if token not in plain[1])
    options = GREEDY | {"eos_token_id": end, "token_type_ids": types}
    expected = run(model, prompts, **options)
    text = run(model, prompts, local_drafter(model), reports=reports, **options)
    assert torch.equal(text, expected)
    _undrafted(reports[0], "token_type_ids", plain[0].index(end) + 1)
    _undrafted(reports[1], "token_type_ids", 8)
    assert [each.prompt_tokens for each in reports] == [6, 2]
    assert reports[0].finish is Finish.RULE


def test_m19_the_stream_ends_once_whether_the_model_fails_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case M19: and the criteria of the call hold."""
    model = _gpt2()
    drafter = local_drafter(model)
    written = Written()
    options = GREEDY | {"token_type_ids": ONES}
    text = run(
        model, [PROMPT], drafter, streamer=written, stopping_criteria=[AfterThree()], **options
    )
    assert text.shape[1] == len(PROMPT) + 3
    assert (written.ids, written.ended) == (text[0].tolist(), 1)

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of memory")

    broken = Written()
    monkeypatch.setattr(model.transformer.h[1], "forward", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(model, [PROMPT], drafter, streamer=broken, **options)
    assert broken.ended == 1
