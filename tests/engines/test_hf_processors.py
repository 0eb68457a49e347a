"""Processors that are no function of the prefix are refused; those of a batch are cut to a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, SynthIDTextWatermarkingConfig

from draftwire.engines.hf.processors import RowProcessors
from draftwire.engines.hf.target import HfTargetEngine, Prepared, only_prepare
from draftwire.errors import ConfigurationError
from draftwire.verifier.sampling import Sampling
from testing.harness.tiny_models import tiny_llama, tiny_tokenizer

V = 16
PROMPT = [3, 7, 2, 9]


class Counting(LogitsProcessor):
    """Its answer depends on how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores + (torch.arange(V) == self.calls).float()


class Following(LogitsProcessor):
    """Follows the text token by token, as incremental grammars do, and raises when it cannot."""

    def __init__(self) -> None:
        self.length: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.length is not None and input_ids.shape[1] != self.length + 1:
            raise RuntimeError("the text did not grow by one token")
        self.length = input_ids.shape[1]
        return scores


class Random(LogitsProcessor):
    """Its answer is drawn."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + torch.rand_like(scores)


class Wide(LogitsProcessor):
    """Its answer is binary64."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.to(torch.float64) / 3


def test_an_answer_in_another_precision_is_rounded_once_and_is_the_same_when_asked_again() -> None:
    ids, logits = torch.tensor([PROMPT]), torch.linspace(-3, 2, 2 * V).view(2, V)
    for processors in (LogitsProcessorList([Wide()]), LogitsProcessorList([Wide(), Wide()])):
        scores = RowProcessors(processors).scores(ids, logits)
        assert torch.equal(scores, processors(ids, logits.clone()).to(torch.float32))


class CountingAll(LogitsProcessor):
    """Its answer depends on how often any of its kind was called."""

    calls = iter(range(1000))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + next(self.calls)


@pytest.mark.parametrize("kind", [CountingAll, Random])
def test_processors_whose_state_cannot_be_copied_are_refused(
    kind: Callable[[], LogitsProcessor],
) -> None:
    options = {"logits_processor": LogitsProcessorList([kind()])}
    engine = HfTargetEngine(tiny_llama(V), tiny_tokenizer(V), identity=bytes(32), options=options)
    context = engine.open(PROMPT, Sampling())
    with pytest.raises(ConfigurationError, match="functions of the prefix alone"):
        engine.score(context, PROMPT, [])


@pytest.mark.parametrize("kind", [Counting, Following])
def test_m16_state_of_their_own_is_driven_along_the_text_once_and_copied_for_drafts(
    kind: Callable[[], LogitsProcessor],
) -> None:
    """Case M16: as ``generate`` calls them, once a place, whatever was drafted in between."""
    options = {"logits_processor": LogitsProcessorList([kind()])}
    engine = HfTargetEngine(tiny_llama(V), tiny_tokenizer(V), identity=bytes(32), options=options)
    context = engine.open(PROMPT, Sampling())
    text, alone = [4, 5, 6, 7, 8], kind()
    expected = [
        alone(torch.tensor([[*PROMPT, *text[:at]]]), torch.zeros(1, V))[0]
        for at in range(len(text) + 1)
    ]
    plain = HfTargetEngine(tiny_llama(V), tiny_tokenizer(V), identity=bytes(32))
    for at, drafts in ((0, [4, 5, 3]), (2, [2, 2]), (3, []), (4, [8])):
        committed = [*PROMPT, *text[:at]]
        rows = engine.score(context, committed, drafts)
        fresh = plain.open(PROMPT, Sampling())
        for row, (scored, without) in enumerate(
            zip(rows, plain.score(fresh, committed, drafts), strict=True)
        ):
            torch.testing.assert_close(scored - without, expected[at + row], rtol=0, atol=1e-4)
        if kind is Counting:
            again = engine.score(context, committed, drafts)  # asked again: nothing has moved
            torch.testing.assert_close(again, rows, rtol=0, atol=1e-4)
    if kind is Counting:
        with pytest.raises(ConfigurationError, match="follows one text"):
            engine.score(context, [*PROMPT, 9], [])


def test_a_constraint_that_counts_its_calls_is_refused() -> None:
    calls = iter(range(2, V))
    options = {"prefix_allowed_tokens_fn": lambda batch, ids: [next(calls)]}
    engine = HfTargetEngine(tiny_llama(V), tiny_tokenizer(V), identity=bytes(32), options=options)
    with pytest.raises(ConfigurationError, match="functions of the prefix alone"):
        engine.score(engine.open(PROMPT, Sampling()), PROMPT, [4])


@pytest.mark.parametrize(
    "options",
    [
        {"guidance_scale": 1.5},
        {
            "watermarking_config": SynthIDTextWatermarkingConfig(
                keys=[1, 2, 3], ngram_len=3, context_history_size=8
            )
        },
    ],
)
def test_stateful_processors_of_transformers_are_refused_by_name(options: dict[str, Any]) -> None:
    engine = HfTargetEngine(tiny_llama(V), tiny_tokenizer(V), identity=bytes(32), options=options)
    with pytest.raises(ConfigurationError, match="keeps state between calls"):
        engine.open(PROMPT, Sampling())


def by_prompt(batch: int, ids: torch.Tensor) -> list[int]:
    """Prompt 0 allows the lower half, prompt 1 the upper one."""
    return list(range(8)) if batch == 0 else list(range(8, V))


@pytest.mark.parametrize("returns", [1, 2])
def test_the_processors_of_a_batch_cut_to_one_row_answer_as_the_batch_does(returns: int) -> None:
    model = tiny_llama(V)
    ids = torch.tensor([[0, 0, 3, 7, 2], [4, 9, 4, 9, 2]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    prepared = model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        max_new_tokens=6,
        num_return_sequences=returns,
        repetition_penalty=1.5,
        encoder_repetition_penalty=1.0 if returns > 1 else 1.3,
        no_repeat_ngram_size=2,
        prefix_allowed_tokens_fn=by_prompt,
        temperature=0.7,
        custom_generate=only_prepare,
    )
    assert isinstance(prepared, Prepared)
    rows = 2 * returns
    ids = ids.repeat_interleave(returns, dim=0)
    logits = torch.randn(rows, V, generator=torch.Generator().manual_seed(3))
    together = prepared.processors(ids, logits.clone())
    for row in range(rows):
        cut = RowProcessors(
            prepared.processors, row=row, rows=rows, rows_each_prompt=returns
        ).scores(ids[row : row + 1], logits[row : row + 1])
        assert torch.equal(cut, together[row : row + 1])
