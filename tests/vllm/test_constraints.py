"""Bias, min-p and equal scores: p of a request as vLLM without speculation has it, in any batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import SamplingParams
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

from draftwire.engines.vllm.constraints import add_bias, cut_min_p, cut_top
from tests.vllm.engines import (
    remote_arguments,
    running,
    serving,
    speculation_of,
    texts,
    toy_drafter,
)

PROMPT = (3, 4)
SHOWN = {"logprobs_mode": "processed_logprobs", "max_logprobs": 8}
KINDS: dict[str, dict[str, Any]] = {
    "top-k among equals": {"top_k": 3},
    "top-p among equals": {"top_p": 0.7},
    "both": {"top_k": 5, "top_p": 0.8, "temperature": 1.4},
    "min-p": {"min_p": 0.2},
    "bias": {"logit_bias": {6: 3.0, 2: -2.0}},
    "all": {"logit_bias": {5: 1.0}, "min_p": 0.1, "top_k": 3, "top_p": 0.9, "temperature": 1.2},
}


def rows(size: int, seed: int = 0) -> torch.Tensor:
    """Scores of which many are equal, at every border."""
    torch.manual_seed(seed)
    return torch.randint(-3, 4, (size, 16)).float() / 2


@pytest.mark.parametrize("k", [None, 1, 3, 15])
@pytest.mark.parametrize("p", [None, 0.3, 0.8])
def test_equal_scores_are_kept_as_vllms_torch_functions_do(k: int | None, p: float | None) -> None:
    """Case M18, bit for bit."""
    one = rows(40)
    top_k = None if k is None else torch.full((20,), k, dtype=torch.int32)
    top_p = None if p is None else torch.full((20,), p)
    twice = [None if each is None else each.repeat_interleave(2) for each in (top_k, top_p)]
    expected = apply_top_k_top_p_pytorch(one.clone(), *twice, allow_cpu_sync=True)
    cut_top(one, top_k, top_p, [2] * 20)
    assert torch.equal(one, expected)
    if k == 3 and p is None:
        assert int((one > -torch.inf).sum(1).max()) > k  # all that are equal to the third


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64])
def test_a_row_does_not_depend_on_the_rows_beside_it(size: int) -> None:
    """Case M18: below and above the number of rows at which vLLM changes its kernel."""
    torch.manual_seed(size)
    top_k = torch.randint(1, 17, (size,), dtype=torch.int32)
    top_p = torch.rand(size).clamp_(min=0.05)
    top_p[::3] = 1.0
    asked = [SamplingParams(min_p=0.1 * (i % 4), logit_bias={i % 16: 1.5}) for i in range(size)]
    together = rows(2 * size, size)
    alone = together.clone()

    def process(part: torch.Tensor, which: Sequence[int]) -> None:
        requests, counts = [asked[i] for i in which], [2] * len(which)
        add_bias(part, requests, counts)
        cut_min_p(part, requests, counts)
        k, p = top_k[list(which)], top_p[list(which)]
        cut_top(part, k if (k < 16).any() else None, p if (p < 1).any() else None, counts)

    process(together, range(size))
    for i in range(size):
        own = alone[2 * i : 2 * i + 2].clone()
        process(own, [i])
        assert torch.equal(own, together[2 * i : 2 * i + 2])


@pytest.fixture(scope="module")
def equals(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target with pairs of words that always score the same."""
    folder = tmp_path_factory.mktemp("equals")
    model = AutoModelForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[3::2] = head[2::2].clone()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    return folder


def shown(output: Any) -> list[dict[int, float]]:
    """What vLLM says p was at each place of a text."""
    return [
        {token: math.exp(each.logprob) for token, each in place.items() if each.logprob > -1e4}
        for place in output.outputs[0].logprobs
    ]


def ask(engine: Any, prompts: Sequence[Sequence[int]], requests: Sequence[Any]) -> list[Any]:
    inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    outputs: list[Any] = engine.generate(inputs, list(requests), use_tqdm=False)
    return outputs


def apart(one: dict[int, float], other: dict[int, float]) -> float:
    return max(abs(one.get(v, 0.0) - other.get(v, 0.0)) for v in {*one, *other})


def test_p_is_that_of_vllm_without_speculation_alone_and_in_a_batch(equals: Path) -> None:
    """Cases M17 and M18: p at every place of drafted texts, out of an engine without a drafter."""
    more = {"max_tokens": 12, "ignore_eos": True, "logprobs": 8}
    asked = [
        SamplingParams(seed=seed, **{**more, **kind}) for seed, kind in enumerate(KINDS.values())
    ]
    greedy = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logit_bias={5: 1.5})
    with serving(toy_drafter(equals)) as address:
        arguments = remote_arguments(address, deadline_ms=20_000, layout="sparse:8", breaker=False)
        with running(equals, **SHOWN, **arguments) as engine:
            alone = [ask(engine, [PROMPT], [one])[0] for one in asked]
            together = ask(engine, [PROMPT] * 18, asked * 3)[: len(asked)]
            drafted_greedy = texts(engine, [PROMPT], [greedy])
            accepted = speculation_of(engine).metrics["accepted_tokens"]
    assert accepted > len(KINDS)
    with running(equals, **SHOWN) as engine:
        assert texts(engine, [PROMPT], [greedy]) == drafted_greedy
        for kind, one, output, batched in zip(KINDS, asked, alone, together, strict=True):
            text = output.outputs[0].token_ids
            assert text == batched.outputs[0].token_ids, kind
            prefixes = [(*PROMPT, *text[:place]) for place in range(len(text))]
            for count in (1, len(prefixes)):  # below and above eight rows
                plain = ask(engine, prefixes[:count], [one] * count)
                found = zip(shown(output), shown(batched), plain, strict=False)
                for drafted, beside, bare in found:
                    (expected,) = shown(bare)[:1]
                    assert apart(drafted, expected) < 2e-6, kind
                    assert apart(beside, expected) < 2e-6, kind
        tied = shown(alone[0])
    assert any(len(place) > 3 for place in tied)  # three asked for, and the fourth is equal
