"""p: what ``model.generate`` would have sampled from, at K+1 positions, drafts in place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, WatermarkingConfig

from draftwire.engines.hf.target import HfTargetEngine, end_tokens
from draftwire.errors import ConfigurationError, ModelError
from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels.protocol import Round
from draftwire.kernels.registry import kernels_for
from draftwire.verifier.judge import judge
from draftwire.verifier.sampling import Sampling
from testing.harness.tiny_models import (
    END,
    fresh_logits,
    normalised,
    stepwise,
    tiny_llama,
    tiny_sliding,
    tiny_tokenizer,
    weights,
)

V = 16
PROMPT = [3, 7, 2, 9, 3, 7]
# Largest measured distance of a probability from stepwise generation, over all cases below: 1.1e-6.
# It is the rounding of a pass over K+1 tokens against passes over one, in binary32.
TOLERANCE = 5e-6


class EvenAfterNine(LogitsProcessor):
    """A user's own processor: after token 9 only even ids, and id 4 twice as likely always."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 4] += 0.6931
        if input_ids[0, -1] == 9:
            scores[:, 1::2] = -torch.inf
        return scores


def grammar(batch: int, ids: torch.Tensor) -> list[int]:
    """Even ids follow even ones, and multiples of three follow odd ones."""
    assert batch == 0
    return list(range(0, V, 2)) if int(ids[-1]) % 2 == 0 else list(range(0, V, 3))


SAMPLINGS: dict[str, Sampling] = {
    "plain": Sampling(),
    "temperature": Sampling(temperature=0.7),
    "hot": Sampling(temperature=3.0),
    "top_k": Sampling(top_k=5),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.05),
    "repetition_penalty": Sampling(repetition_penalty=1.7),
    "all": Sampling(temperature=1.3, top_k=12, top_p=0.95, min_p=0.01, repetition_penalty=1.2),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "typical_p": {"typical_p": 0.7},
    "epsilon_cutoff": {"epsilon_cutoff": 0.05},
    "eta_cutoff": {"eta_cutoff": 0.05},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "bad_words": {"bad_words_ids": [[3], [4, 5], [9, 2, 7]]},
    "sequence_bias": {"sequence_bias": [[[6], 1.5], [[9, 2], -4.0]]},
    "suppress": {"suppress_tokens": [2, 11]},
    "begin_suppress": {"begin_suppress_tokens": [4, 5, 6]},
    "min_new_tokens": {"min_new_tokens": 3},
    "min_length": {"min_length": len(PROMPT) + 2},
    "forced_end": {"forced_eos_token_id": END},
    "length_penalty": {"exponential_decay_length_penalty": (2, 1.4)},
    "encoder_repetition": {"encoder_repetition_penalty": 1.3},
    "remove_invalid": {"remove_invalid_values": True},
    "renormalize": {"renormalize_logits": True},
    "watermark": {"watermarking_config": WatermarkingConfig(greenlist_ratio=0.4, bias=1.5)},
    "grammar": {"prefix_allowed_tokens_fn": grammar},
    "own": {"logits_processor": LogitsProcessorList([EvenAfterNine()])},
    "together": {
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[9, 2]],
        "min_new_tokens": 2,
        "suppress_tokens": [8],
        "prefix_allowed_tokens_fn": grammar,
        "logits_processor": LogitsProcessorList([EvenAfterNine()]),
    },
}
CASES = {name: (sampling, {}) for name, sampling in SAMPLINGS.items()} | {
    name: (SAMPLINGS["all"], options) for name, options in OPTIONS.items()
}


def engine_for(model: Any, options: dict[str, Any] | None = None) -> HfTargetEngine:
    return HfTargetEngine(model, tiny_tokenizer(V), identity=bytes(32), options=options)


def generate_arguments(sampling: Sampling, tokens: int, options: dict[str, Any]) -> dict[str, Any]:
    """The call of ``model.generate`` that a user would write for ``sampling``."""
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or None,
        "repetition_penalty": sampling.repetition_penalty,
        "max_new_tokens": tokens,
        **options,
    }


def scored_in_rounds(
    engine: HfTargetEngine, sampling: Sampling, tokens: Sequence[int], depth: int
) -> np.ndarray:
    """p at every position of ``tokens``, asked for with wrong drafts first and then the right ones.

    Rounds of ``depth``: the drafts of each are rejected once (others in their place) before the
    text's own tokens are scored, so every row is computed after a rollback.
    """
    context = engine.open(PROMPT, sampling)
    wrong = np.random.default_rng(7)
    rows = []
    for start in range(0, len(tokens), depth):
        committed = [*PROMPT, *tokens[:start]]
        engine.score(context, committed, wrong.integers(2, V, depth).tolist())
        drafts = tokens[start : start + depth - 1]
        rows.append(normalised(engine.score(context, committed, drafts)))
    return np.concatenate(rows)[: len(tokens)]  # the last round may reach beyond the text


@pytest.mark.parametrize("case", sorted(CASES))
def test_d8_p_is_processed_at_every_position_as_generate_does(case: str) -> None:
    sampling, options = CASES[case]
    model = tiny_llama(V, dtype=torch.float64)
    engine = engine_for(model, options)
    draw = np.random.default_rng(sum(map(ord, case)))
    for _ in range(2):
        # Any tokens but the end, also those that p forbids: a draft may be one.
        tokens = draw.integers(2, V, 8).tolist()
        limited = Sampling(**{**_fields(sampling), "max_tokens": len(tokens)})
        expected = stepwise(
            model, PROMPT, tokens, generate_arguments(sampling, len(tokens), options)
        )
        for depth in (1, 3, 8):
            rows = scored_in_rounds(engine, limited, tokens, depth)
            np.testing.assert_allclose(rows, expected, atol=TOLERANCE, rtol=0)


def _fields(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}


def test_d8_low_temperature_and_small_top_p_reach_the_bonus_row() -> None:
    model = tiny_llama(V)
    engine = engine_for(model)
    context = engine.open(PROMPT, Sampling(temperature=0.1, top_p=0.1))
    rows = weights(engine.score(context, PROMPT, [5, 6, 7]))
    logits = fresh_logits(model, [*PROMPT, 5, 6, 7])[-4:]
    assert rows.shape == (4, V)
    for row, raw in zip(rows, logits, strict=True):
        assert np.flatnonzero(row).tolist() == [int(raw.argmax())]


def test_forced_begin_applies_to_a_prompt_of_one_token() -> None:
    model, options = tiny_llama(V), {"forced_bos_token_id": 9}
    engine = engine_for(model, options)
    rows = weights(engine.score(engine.open([3], Sampling(max_tokens=4)), [3], [9, 2]))
    assert np.flatnonzero(rows[0]).tolist() == [9]
    assert np.count_nonzero(rows[1]) == V


def test_a_sliding_window_gives_the_same_p_after_rollbacks() -> None:
    model = tiny_sliding(V, 4)
    engine = engine_for(model)
    tokens = [5, 6, 2, 9, 4, 8, 3, 7]
    sampling = Sampling(temperature=0.9, max_tokens=len(tokens))
    expected = stepwise(model, PROMPT, tokens, generate_arguments(sampling, len(tokens), {}))
    rows = scored_in_rounds(engine, sampling, tokens, 4)
    np.testing.assert_allclose(rows, expected, atol=TOLERANCE, rtol=0)


def test_the_joint_law_of_three_tokens_is_the_models_own() -> None:
    """All V^3 texts: the product of scored rows, drafts in place, against cache-free passes.

    Largest measured distance: 7e-9.
    """
    vocab_size = 6
    model = tiny_llama(vocab_size, seed=3, dtype=torch.float64)
    engine = HfTargetEngine(model, tiny_tokenizer(vocab_size), identity=bytes(32))
    prompt = [2, 5, 3]
    context = engine.open(prompt, Sampling(temperature=0.8, max_tokens=3))
    total = 0.0
    for text in itertools.product(range(vocab_size), repeat=3):
        rows = normalised(engine.score(context, prompt, text[:2]))
        joint = float(np.prod(rows[range(3), text]))
        expected = 1.0
        for length, token in enumerate(text):
            logits = fresh_logits(model, [*prompt, *text[:length]])[-1].astype(np.float64) / 0.8
            mass = np.exp(logits - logits.max())
            expected *= mass[token] / mass.sum()
        assert joint == pytest.approx(expected, abs=1e-6)
        total += joint
    assert total == pytest.approx(1.0, abs=1e-6)


GREEDY = {
    "plain": {},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 9},
    "grammar": {"prefix_allowed_tokens_fn": grammar},
}


@pytest.mark.parametrize("case", sorted(GREEDY))
def test_greedy_rounds_give_the_text_of_generate(case: str) -> None:
    model, options = tiny_llama(V), dict(GREEDY[case])
    penalty = float(options.pop("repetition_penalty", 1.0))
    engine = engine_for(model, options)
    draw = np.random.default_rng(5)
    for prompt in ([3], [2, 9, 4], PROMPT, [12, 5, 5, 8, 2, 2]):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=20,
            repetition_penalty=penalty,
            **options,
        )[0].tolist()
        sampling = Sampling(temperature=0, repetition_penalty=penalty, max_tokens=20)
        context = engine.open(prompt, sampling)
        text = list(prompt)
        while text[-1] not in engine.end_tokens and len(text) < len(prompt) + 20:
            left = len(prompt) + 20 - len(text)
            # Half of the drafts are right as far as they go.
            drafts = expected[len(text) : len(text) + 3][: left - 1]
            if drafts and draw.integers(2):
                drafts[int(draw.integers(len(drafts)))] = int(draw.integers(V))
            largest = engine.score(context, text, drafts).argmax(1).tolist()
            for row, draft in itertools.zip_longest(largest, drafts):
                text.append(row)
                if row != draft or row in engine.end_tokens:
                    break
        assert text == expected


def test_d9_the_cache_holds_the_committed_prefix_after_every_rejection() -> None:
    engine = engine_for(tiny_llama(V))
    drafts = [5, 6, 7, 8]
    for accepted in range(len(drafts) + 1):
        context = engine.open(PROMPT, Sampling())
        engine.score(context, PROMPT, drafts)
        assert context.sequence.tokens == (*PROMPT, *drafts)
        committed = [*PROMPT, *drafts[:accepted], 11]
        rows = engine.score(context, committed, [])
        assert context.sequence.tokens == tuple(committed)
        assert set(context.sequence.layer_lengths()) == {len(committed)}
        fresh = engine.score(engine.open(PROMPT, Sampling()), committed, [])
        np.testing.assert_allclose(normalised(rows), normalised(fresh), atol=TOLERANCE, rtol=0)


def test_an_array_that_was_returned_is_not_written_again() -> None:
    engine = engine_for(tiny_llama(V))
    context = engine.open(PROMPT, Sampling())
    rows = engine.score(context, PROMPT, [5, 6])
    kept = rows.clone()
    engine.score(context, PROMPT, [8, 9, 10])
    assert torch.equal(rows, kept)


def test_requests_do_not_see_each_other() -> None:
    engine = engine_for(tiny_llama(V))
    alone = engine.score(engine.open(PROMPT, Sampling()), PROMPT, [5, 6])
    first, second = engine.open(PROMPT, Sampling()), engine.open([4, 4], Sampling(top_k=2))
    engine.score(second, [4, 4], [9])
    together = engine.score(first, PROMPT, [5, 6])
    engine.close(second)
    assert torch.equal(alone, together)


def allowed_by_row(mask: Sequence[int]) -> Any:
    return lambda batch, ids: list(mask)


def test_g21_each_request_keeps_its_own_mask_and_a_forbidden_draft_has_no_mass() -> None:
    model = tiny_llama(V)
    first = engine_for(model, {"prefix_allowed_tokens_fn": allowed_by_row([2, 3])})
    second = engine_for(model, {"prefix_allowed_tokens_fn": allowed_by_row([4, 5, 6])})
    one, other = first.open(PROMPT, Sampling()), second.open(PROMPT, Sampling())
    withdrawn = weights(first.score(one, PROMPT, []))
    whole = weights(second.score(other, PROMPT, [3, 5]))
    assert np.flatnonzero(withdrawn[0]).tolist() == [2, 3]
    for row in whole:
        assert np.flatnonzero(row).tolist() == [4, 5, 6]
    assert whole[0][3] == 0  # an ordinary rejection


def test_g22_a_constraint_that_begins_inside_the_drafts_masks_what_follows() -> None:
    def after_nine(batch: int, ids: torch.Tensor) -> list[int]:
        return [2, 3] if 9 in ids[len(PROMPT) :].tolist() else list(range(V))

    engine = engine_for(tiny_llama(V), {"prefix_allowed_tokens_fn": after_nine})
    rows = weights(engine.score(engine.open(PROMPT, Sampling()), PROMPT, [5, 9, 2, 7]))
    assert [np.count_nonzero(row) for row in rows] == [V, V, 2, 2, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"bad_words_ids": [[5]]},
        {"suppress_tokens": [5]},
        {"sequence_bias": [[[5], -torch.inf]]},
    ],
)
def test_g24_a_bias_of_minus_infinity_leaves_no_mass_anywhere(options: dict[str, Any]) -> None:
    engine = engine_for(tiny_llama(V), options)
    rows = weights(engine.score(engine.open(PROMPT, Sampling()), PROMPT, [5, 5, 5]))
    assert not rows[:, 5].any()
    assert (np.count_nonzero(rows, axis=1) == V - 1).all()


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 4.0])
def test_g25_one_legal_token_is_a_point_mass_everywhere(temperature: float) -> None:
    engine = engine_for(tiny_llama(V), {"prefix_allowed_tokens_fn": allowed_by_row([11])})
    rows = engine.score(engine.open(PROMPT, Sampling(temperature=temperature)), PROMPT, [11, 2, 11])
    assert normalised(rows).tolist() == [[float(v == 11) for v in range(V)]] * 4


class Poison(LogitsProcessor):
    """Turns the scores after token 9 into ``value``."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, self.value) if input_ids[0, -1] == 9 else scores


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_e49_a_row_of_nan_stays_nan_and_its_neighbours_are_whole(temperature: float) -> None:
    options = {"logits_processor": LogitsProcessorList([Poison(torch.nan)])}
    engine = engine_for(tiny_llama(V), options)
    scored = engine.score(engine.open(PROMPT, Sampling(temperature=temperature)), PROMPT, [9, 4])
    rows = scored.numpy()
    assert np.isnan(rows[1]).all()
    assert np.isfinite(rows[[0, 2]]).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_e48_a_row_of_minus_infinity_has_no_mass(temperature: float) -> None:
    options = {"logits_processor": LogitsProcessorList([Poison(-torch.inf)])}
    engine = engine_for(tiny_llama(V), options)
    rows = engine.score(engine.open(PROMPT, Sampling(temperature=temperature)), PROMPT, [9])
    assert torch.isneginf(rows[1]).all()


def test_a21_greedy_ties_go_to_the_lowest_id() -> None:
    options = {"logits_processor": LogitsProcessorList([Poison(0.5)])}
    engine = engine_for(tiny_llama(V), options)
    scores = engine.score(engine.open(PROMPT, Sampling(temperature=0)), PROMPT, [9])
    this = Round((), (), 1, 1, KeyedWords(RequestKey(0)), 1, 1, len(PROMPT) + 1, greedy=True)
    (judgement,) = judge(kernels_for("auto", scores), scores, [this])
    assert judgement.tokens == (0,)


def test_v18_padded_ids_keep_the_probability_that_transformers_gives_them() -> None:
    model = tiny_llama(18)
    engine = HfTargetEngine(model, tiny_tokenizer(13), identity=bytes(32))
    assert (engine.vocab_size, engine.row_width) == (13, 18)
    sampling = Sampling(temperature=0.9, max_tokens=3)
    rows = normalised(engine.score(engine.open(PROMPT, sampling), PROMPT, [4, 5]))
    expected = stepwise(model, PROMPT, [4, 5, 6], generate_arguments(sampling, 3, {}))
    np.testing.assert_allclose(rows, expected, atol=TOLERANCE, rtol=0)
    assert rows[:, 13:].any()


def test_what_transformers_refuses_is_refused_when_the_request_opens() -> None:
    with pytest.raises(ConfigurationError, match="transformers refuses"):
        engine_for(tiny_llama(V), {"no_such_argument": 1}).open(PROMPT, Sampling())
    with pytest.raises(ConfigurationError, match="transformers refuses"):
        engine_for(tiny_llama(V), {"no_repeat_ngram_size": 2, "typical_p": -1.0}).open(
            PROMPT, Sampling()
        )


def test_end_tokens_are_those_of_the_generation_configuration() -> None:
    model = tiny_llama(V)
    assert engine_for(model).end_tokens == {END}
    for named, expected in ((None, set()), (4, {4}), ([4, 5], {4, 5})):
        config = type(model.generation_config)(eos_token_id=named)
        assert end_tokens(config) == expected


@pytest.mark.parametrize("named", ["x", 1.5, ["1"], [None]])
def test_end_tokens_that_are_no_ids_are_refused(named: object) -> None:
    with pytest.raises(ModelError, match="eos_token_id"):
        end_tokens(SimpleNamespace(eos_token_id=named))


@pytest.mark.parametrize("named", [1, [1], (1,), torch.tensor([1])])
def test_end_tokens_are_ids_however_they_are_written(named: object) -> None:
    assert end_tokens(SimpleNamespace(eos_token_id=named)) == {1}
