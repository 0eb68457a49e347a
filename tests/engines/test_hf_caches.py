"""The hook goes on from a cache of the caller's, and leaves in it what generate does."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from draftwire.engines.hf import remote_speculative
from draftwire.errors import ConfigurationError
from draftwire.verifier.report import Report
from testing.harness.tiny_models import tiny_sliding
from tests.engines.hook_calls import PROMPT, V, local_drafter, run, target_model

DEPTH = 5
SHARED = 2000
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None, "seed": 1}
SAMPLED = GREEDY | {"do_sample": True}


@functools.cache
def _long_llama(layers: int = 2, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        initializer_range=0.6,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval().double()


@contextmanager
def _fed(model: Any) -> Iterator[list[int]]:
    """The tokens that each pass of the model is given."""
    passes: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        yield passes
    finally:
        hook.remove()


def _plain(model: Any, prompt: list[int], **options: Any) -> torch.Tensor:
    options.pop("seed", None)
    return run(model, [prompt], **options)


def _padded(model: Any, ids: torch.Tensor, drafter: Any) -> Any:
    mask = (torch.arange(ids.shape[1]) >= 2).long()[None]
    return model.generate(
        ids,
        attention_mask=mask,
        cache=DynamicCache(),
        custom_generate=remote_speculative,
        drafter=drafter,
        **GREEDY,
    )


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("given", [True, False], ids=["given", "returned"])
def test_m13_the_second_turn_reads_what_is_new(options: dict[str, Any], given: bool) -> None:
    """Case M13: two turns that share 2,000 tokens; the second reads its new ones and one more."""
    model = _long_llama()
    drafter = local_drafter(model, _long_llama(1, 4))
    draw = random.Random(7)
    first = [draw.randrange(2, V) for _ in range(SHARED)]
    kept: dict[str, Any] = {"cache": DynamicCache()} if given else {}
    output = run(model, [first], drafter, return_dict_in_generate=True, **kept, **options)
    assert torch.equal(output.sequences, run(model, [first], drafter, **options))
    cache = output.cache
    assert not given or cache is kept["cache"]
    assert cache.get_seq_length() == output.sequences.shape[1] - 1
    new = [draw.randrange(2, V) for _ in range(30)]
    second = [*output.sequences[0].tolist(), *new]
    reports: list[Report] = []
    with _fed(model) as passes:
        text = run(model, [second], drafter, cache=cache, reports=reports, **options)
    assert torch.equal(text, run(model, [second], drafter, **options))
    assert passes[0] <= len(new) + 1 + DEPTH  # drafts of the first round in place
    drafted, tokens = reports[0].drafted, reports[0].tokens
    assert sum(passes) <= len(new) + 1 + drafted + tokens
    assert drafted > reports[0].accepted > 0
    assert cache.get_seq_length() == text.shape[1] - 1
    if options is GREEDY:
        assert torch.equal(text, _plain(model, second, **options))


def test_m13_an_undrafted_second_turn_reads_the_new_tokens_and_one() -> None:
    """Case M13: and every token of the text but the last, once."""
    model = _long_llama()
    drafter = local_drafter(model, _long_llama(1, 4))
    cache = DynamicCache(config=model.config)
    first = run(model, [PROMPT], drafter, cache=cache, **GREEDY)
    second = [*first[0].tolist(), 5, 6, 7]
    with _fed(model) as passes:
        run(model, [second], drafter, cache=cache, depth=0, **GREEDY)
    assert passes == [4, *[1] * 15]


def test_m13_generate_and_the_hook_take_each_others_caches() -> None:
    """Case M13: the keys that the hook leaves are generate's, whoever filled the cache before."""
    model = target_model()
    drafter = local_drafter(model)
    ours, theirs = DynamicCache(), DynamicCache()
    first = run(model, [PROMPT], drafter, cache=ours, **GREEDY)
    assert torch.equal(first, _plain(model, PROMPT, cache=theirs, **GREEDY))
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(mine.keys, other.keys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.values, other.values, rtol=1e-4, atol=1e-5)
        assert not mine.keys.is_inference()
    second = [*first[0].tolist(), 5]
    expected = _plain(model, second, **GREEDY)
    assert torch.equal(_plain(model, second, cache=ours, **GREEDY), expected)
    assert torch.equal(run(model, [second], drafter, cache=theirs, **GREEDY), expected)
    again = run(
        model, [expected[0].tolist()[: theirs.get_seq_length()]], drafter, cache=theirs, **GREEDY
    )  # it holds all ids: the last is read again
    assert torch.equal(again, _plain(model, expected[0].tolist()[:-1], **GREEDY))


def test_m13_a_window_keeps_its_past_where_the_cache_does() -> None:
    """Case M13: DynamicCache() of a model with a sliding window; its own layers are refused."""
    model = tiny_sliding(V, 4)
    drafter = local_drafter(model)
    output = run(model, [PROMPT], drafter, return_dict_in_generate=True, **GREEDY)
    second = [*output.sequences[0].tolist(), 5]
    with _fed(model) as passes:
        text = run(model, [second], drafter, cache=output.cache, **GREEDY)
    assert torch.equal(text, _plain(model, second, **GREEDY))
    assert passes[0] <= 2 + DEPTH
    with pytest.raises(ConfigurationError, match="window or a state"):
        run(model, [PROMPT], drafter, cache=DynamicCache(config=model.config), **GREEDY)


def test_m13_what_fails_half_way_leaves_the_verified_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case M13: the cache can be used for the same call again."""
    model = target_model()
    drafter = local_drafter(model)
    layer = model.model.layers[1]
    forward = layer.forward
    for until in (0, 2):  # while the prompt is read, and behind some rounds
        cache, calls = DynamicCache(), iter(range(100))

        def failing(*args: Any, calls: Any = calls, until: int = until, **kwargs: Any) -> Any:
            if next(calls) == until:
                raise RuntimeError("out of memory")
            return forward(*args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(layer, "forward", failing)
            with pytest.raises(RuntimeError, match="out of memory"):
                run(model, [PROMPT], drafter, cache=cache, **GREEDY)
        expected = _plain(model, PROMPT, **GREEDY)[0].tolist()
        held = cache.get_seq_length()
        assert held >= len(PROMPT) if until else held == 0
        assert {each.get_seq_length() for each in cache.layers} <= {held}
        begun = expected[: max(held, len(PROMPT))]
        options = GREEDY | {"max_new_tokens": len(expected) - len(begun)}
        text = run(model, [begun], drafter, cache=cache, **options)
        assert text[0].tolist() == expected


def test_m13_a_cache_that_does_not_fit_the_call_is_refused_and_kept() -> None:
    """Case M13: of other rows, of a longer text, or behind padding."""
    model = target_model()
    drafter = local_drafter(model)
    cache = DynamicCache()
    _plain(model, PROMPT, cache=cache, **GREEDY)
    held = cache.get_seq_length()
    with pytest.raises(ConfigurationError, match=f"it holds {held} tokens and input_ids 6"):
        run(model, [PROMPT], drafter, cache=cache, **GREEDY)
    rows = DynamicCache()
    run(model, [PROMPT, PROMPT], cache=rows, do_sample=False, max_new_tokens=2)
    with pytest.raises(ConfigurationError, match="it holds several rows"):
        run(model, [[*PROMPT, 3, 4]], drafter, cache=rows, **GREEDY)
    ids = torch.tensor([[0, 0, *PROMPT]])
    with pytest.raises(ConfigurationError, match="the prompt is padded"):
        _padded(model, ids, drafter)
    assert cache.get_seq_length() == held
