"""Everything a request may ask of vLLM, beside a drafter: the same as without one, or refused.

Laws are in ``test_laws.py``. What has no chance in it is compared exactly here: texts of a seed one
way and another, greedy texts, and every row of p that was judged.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from draftwire.engines.vllm.speculation import SpeculationState
from tests.vllm.conftest import Bench, Judged
from tests.vllm.engines import remote_arguments, running, speculation_of, texts
from tests.vllm.models import END, WORDS
from tests.vllm.reference import worst_of
from tests.vllm.test_laws import SCHEMA
from tests.vllm.test_requests import LONG, preemptions, seeded

PROMPT = (3, 4)


def counter(engine: Any, name: str) -> float:
    return sum(metric.value for metric in engine.get_metrics() if metric.name == name)


def test_n_outputs_are_those_of_n_seeds_in_a_row(bench: Bench) -> None:
    request = seeded(5, n=3, max_tokens=20)
    output = bench.engine.generate([{"prompt_token_ids": list(PROMPT)}], request, use_tqdm=False)[0]
    several = [tuple(each.token_ids) for each in output.outputs]
    alone = [texts(bench.engine, [PROMPT], [seeded(5 + i, max_tokens=20)])[0] for i in range(3)]
    assert several == alone


def test_a_prompt_out_of_the_prefix_cache_gives_the_same_text(
    bench: Bench, record: list[Judged]
) -> None:
    prompt = tuple((3 * place + place // 7) % 8 for place in range(45))
    hits = counter(bench.engine, "vllm:prefix_cache_hits")
    first = texts(bench.engine, [prompt], [seeded(6, max_tokens=12)])
    assert counter(bench.engine, "vllm:prefix_cache_hits") == hits
    again = texts(bench.engine, [prompt], [seeded(6, max_tokens=12)])
    assert counter(bench.engine, "vllm:prefix_cache_hits") >= hits + 32
    assert again == first
    assert worst_of(bench, prompt, record) < 2e-5


def test_prompts_read_in_chunks_give_the_texts_of_whole_ones(bench: Bench) -> None:
    """Eight prompts of 50 tokens, of which a step takes 100 in all, beside each alone."""
    prompts = [tuple((row + 2 * place) % 8 for place in range(50)) for row in range(8)]
    asked = [seeded(row, max_tokens=10) for row in range(8)]
    alone = [
        texts(bench.engine, [prompt], [one])[0] for prompt, one in zip(prompts, asked, strict=True)
    ]
    assert bench.engine.reset_prefix_cache()
    assert texts(bench.engine, prompts, asked) == alone


def test_preempted_requests_go_on_where_they_were(bench: Bench, record: list[Judged]) -> None:
    """Greedy texts are those of each alone, and p stays the model's own in every row."""
    prompts = [(2 + row % 6, row % 5) for row in range(60)]
    asked = [
        SamplingParams(temperature=float(row % 2), max_tokens=LONG, ignore_eos=True)
        for row in range(60)
    ]
    few = slice(0, 6, 2)
    alone = texts(bench.engine, prompts[few], asked[few])
    before = preemptions(bench.engine)
    record.clear()
    together = texts(bench.engine, prompts, asked)
    assert preemptions(bench.engine) > before
    assert together[few] == alone
    worst = max(worst_of(bench, row.prompt, [row]) for row in record[::7])
    assert worst < 2e-5
    assert len(record) > 60 * LONG // 2


def test_a_stop_string_ends_the_text_that_goes_on_without_it(bench: Bench) -> None:
    whole = texts(bench.engine, [PROMPT] * 6, [seeded(seed, max_tokens=30) for seed in range(6)])
    last = next(token for token in whole[0][9:] if token > END)  # a word that comes and is shown
    asked = [seeded(seed, max_tokens=30, stop=[WORDS[last]]) for seed in range(6)]
    outputs = bench.engine.generate([{"prompt_token_ids": list(PROMPT)}] * 6, asked, use_tqdm=False)
    for text, output in zip(whole, outputs, strict=True):
        got = output.outputs[0]
        length = text.index(last) + 1 if last in text else len(text)
        assert tuple(got.token_ids) == text[:length]
        assert WORDS[last] not in got.text
        assert (got.finish_reason == "stop") == (last in text)


def test_no_text_ends_before_min_tokens(bench: Bench) -> None:
    asked = [
        SamplingParams(temperature=1.5, seed=seed, min_tokens=7, max_tokens=20, stop_token_ids=[2])
        for seed in range(40)
    ]
    lengths = [len(text) for text in texts(bench.engine, [PROMPT] * 40, asked)]
    assert min(lengths) >= 7 and lengths.count(20) < 20


def test_bad_words_and_ids_that_are_not_allowed_never_come(bench: Bench) -> None:
    pair, allowed = (3, 4), [1, 2, 5, 7]
    asked = [seeded(seed, bad_words=["true false", "w6"]) for seed in range(10)]
    asked += [seeded(seed, allowed_token_ids=allowed) for seed in range(10)]
    got = texts(bench.engine, [PROMPT] * 20, asked)
    for text in got[:10]:
        assert 6 not in text and pair not in set(itertools.pairwise(text))
    for text in got[10:]:
        assert set(text) <= set(allowed)


@pytest.mark.parametrize("structure", [{"regex": "(true|false)(w6|w7)*}"}, {"json": SCHEMA}])
def test_structured_texts_are_the_same_alone_and_in_a_batch(
    bench: Bench, structure: dict[str, Any]
) -> None:
    prompt = (6, 5)  # after which true and false are about as likely
    wanted = StructuredOutputsParams(**structure)
    asked = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=40, structured_outputs=wanted)
        for seed in range(6)
    ]
    alone = [texts(bench.engine, [prompt], [one])[0] for one in asked]
    assert texts(bench.engine, [prompt] * 6, asked) == alone
    for text in alone:
        assert text[-1] == END or len(text) == 40
        if "json" in structure:
            assert text in ((2, 3, 5, END), (2, 4, 5, END))
    assert len(set(alone)) > 1


def test_a_seed_repeats_its_text_while_there_is_no_drafter(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other words than with one, so another text, but one that a batch does not change either."""
    asked = [seeded(seed, max_tokens=20) for seed in range(12)]
    greedy = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    drafted = texts(bench.engine, [PROMPT] * 13, [*asked, greedy])
    monkeypatch.setattr(SpeculationState, "propose", lambda self, requests_of_step, deadline: {})
    alone = [texts(bench.engine, [PROMPT], [one])[0] for one in asked]
    together = texts(bench.engine, [PROMPT] * 13, [*asked, greedy])
    assert together[:12] == alone
    assert together[12] == drafted[12]
    assert sum(a == b for a, b in zip(alone, drafted, strict=False)) < 6


def test_named_ids_are_shown_beside_the_largest_of_others(bench: Bench) -> None:
    """vLLM's own rejection sampler leaves logprob_token_ids out."""
    asked = [
        seeded(1, max_tokens=9, logprob_token_ids=[7, 2]),
        seeded(2, max_tokens=9, logprobs=4),
        seeded(3, max_tokens=9),
    ]
    outputs = bench.engine.generate([{"prompt_token_ids": list(PROMPT)}] * 3, asked, use_tqdm=False)
    named, largest, none = (output.outputs[0] for output in outputs)
    assert none.logprobs is None
    plain = SamplingParams()
    for output, ids in ((named, {7, 2}), (largest, None)):
        for place, shown in enumerate(output.logprobs):
            token, before = output.token_ids[place], tuple(output.token_ids[:place])
            p = bench.reference.p(plain, PROMPT, before)
            expected = ids or {int(each) for each in (-p).argsort()[:4]}
            assert set(shown) == expected | {token}
            assert all(abs(2.718281828459045**v.logprob - p[k]) < 2e-5 for k, v in shown.items())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"logit_bias": {8: 5.0}}, "out-of-vocab"),
        ({"min_p": 1.5}, "min_p must be in"),
        ({"trace_decode_token_ids": [3]}, "not supported with speculative decoding"),
        ({"prompt_logprob_token_ids": [[3]]}, "requires the V2 model runner"),
    ],
)
def test_what_vllm_refuses_of_a_request_is_refused_in_its_words(
    bench: Bench, more: dict[str, Any], says: str
) -> None:
    before = set(speculation_of(bench.engine).requests)
    with pytest.raises((VLLMValidationError, ValueError), match=says):
        texts(bench.engine, [PROMPT], [SamplingParams(max_tokens=4, **more)])
    assert set(speculation_of(bench.engine).requests) <= before


@pytest.mark.parametrize("depth", [-1, 65, 1.5, "2", True, [1]])
def test_what_is_no_depth_is_refused_and_others_go_on(bench: Bench, depth: Any) -> None:
    request = seeded(1, max_tokens=6, extra_args={"draftwire_depth": depth})
    with pytest.raises(VLLMValidationError, match="draftwire_depth must be a whole number from 0"):
        texts(bench.engine, [PROMPT], [request])
    assert len(texts(bench.engine, [PROMPT], [seeded(1, max_tokens=6)])[0]) == 6


def test_a_request_names_its_own_depth_or_none_beside_others(bench: Bench) -> None:
    """Drafts are asked for, for the others only; more than the engine's depth is the engine's."""
    asked: dict[int, list[int]] = {seed: [] for seed in range(4)}
    requests = [
        seeded(seed, max_tokens=20, extra_args=extra)
        for seed, extra in enumerate(
            ({"draftwire_depth": 0}, {"draftwire_depth": 1}, {"draftwire_depth": 64}, None)
        )
    ]
    speculation = speculation_of(bench.engine)
    propose = type(speculation).propose

    def noting(self: SpeculationState, wanted: Any, deadline: float) -> Any:
        for each in wanted:
            asked[int(each.name.partition("-")[0]) - first].append(each.policy.depth)
        return propose(self, wanted, deadline)

    first = bench.engine.request_counter.counter
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpeculationState, "propose", noting)
        together = texts(bench.engine, [PROMPT] * 4, requests)
    assert not asked[0] and asked[1] and set(asked[1]) == {1}
    assert max(asked[2]) == max(asked[3]) == 3
    assert together == [texts(bench.engine, [PROMPT], [one])[0] for one in requests]


class Biased(AdapterLogitsProcessor):
    """A logits processor of a user's."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> None:
        return None


def test_custom_logits_processors_are_refused_in_vllms_words(tiny: Path) -> None:
    arguments = remote_arguments("127.0.0.1:9", breaker=False)
    with (
        pytest.raises(ValueError, match="not supported when speculative decoding is enabled"),
        running(tiny, logits_processors=[Biased], **arguments),
    ):
        raise AssertionError("an engine has started")
