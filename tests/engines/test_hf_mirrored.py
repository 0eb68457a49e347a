"""What a drafter is told of transformers' processors does to a row what they do (case M15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as stock

from draftwire.drafter.mirror import Mirror
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfTargetEngine
from draftwire.engines.hf.mirrored import mirrored
from draftwire.engines.hf.processors import RowProcessors
from draftwire.kernels.registry import kernels_for
from draftwire.session.prefix import Prefix
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.mirror import mirrored_bytes
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.processors import NoRepeatNgram, Repetition, decode_processors
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import tiny_llama, tiny_tokenizer
from tests.engines.hook_calls import PROMPT, V, local_drafter, run
from tests.engines.test_hf_vocabulary import shared_engine


def assert_same(rows: torch.Tensor, expected: torch.Tensor) -> None:
    """The same laws: a forced token has its logit on one side, and 0 on the other."""
    laws = (each.double().softmax(-1) for each in (rows, expected))
    assert torch.allclose(*laws, rtol=1e-5, atol=0)


SETS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "no repeat": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[5], [3, 7], [9, 3, 7]]},
    "sequence bias": {"sequence_bias": [[[4], 2.5], [[2, 9], -3.0], [[7, 9], -1.5], [[9], 0.5]]},
    "suppressed": {"suppress_tokens": [6, 2, 11]},
    "suppressed at first": {"begin_suppress_tokens": [8, 3]},
    "min length": {"min_length": len(PROMPT) + 2},
    "min new tokens": {"min_new_tokens": 3},
    "forced end": {"forced_eos_token_id": 1},
    "several": {
        "repetition_penalty": 0.8,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[5]],
        "suppress_tokens": [2],
        "min_new_tokens": 2,
    },
}


def opened(options: dict[str, Any], tokens: int = 6) -> tuple[HfTargetEngine, Any]:
    engine = HfTargetEngine(tiny_llama(V), tiny_tokenizer(V), identity=b"t" * 32, options=options)
    penalty = float(options.get("repetition_penalty", 1.0))
    sampling = Sampling(max_tokens=tokens, repetition_penalty=penalty, seed=1)
    return engine, engine.open(PROMPT, sampling)


def told(encoded: bytes, text: Sequence[int], committed: int, rows: torch.Tensor) -> torch.Tensor:
    """The rows behind ``text[:committed]`` and each draft after it, on the drafter's side."""
    mirror = Mirror(encoded, Prefix(text[:committed]), V)
    mirror.follow(committed)
    made = []
    for row, token in zip(rows, (*text[committed:], None), strict=True):
        made.append(kernels_for("torch", "cpu").adjust(row[None], [mirror.adjustments()])[0])
        if token is not None:
            mirror.draft(token)
    return torch.stack(made)


@pytest.mark.parametrize("options", SETS.values(), ids=SETS.keys())
def test_rows_are_those_that_the_target_samples_from(options: dict[str, Any]) -> None:
    engine, context = opened(options)
    encoded = mirrored_bytes(engine.processors(context), V)
    assert encoded
    rng = np.random.default_rng(3)
    changed = 0
    for new in range(5):
        text = [*PROMPT, *rng.integers(2, V, 5).tolist()]
        committed = len(PROMPT) + new
        rows = torch.from_numpy(rng.normal(size=(6 - new, V)).astype(np.float32) * 3)
        expected = context.processors.scores(torch.tensor([text]), rows.clone())
        got = told(encoded, text, committed, rows)
        assert_same(got, expected)
        changed += int((expected != rows).sum())
    assert changed


def test_processors_of_one_row_of_a_padded_batch_count_from_its_own_prompt() -> None:
    """Three ids of padding, which the built processors count as text."""
    built = LogitsProcessorList(
        [
            stock.RepetitionPenaltyLogitsProcessor(1.5, torch.tensor([3, 5])),
            stock.MinLengthLogitsProcessor(9, 1),
            stock.SuppressTokensAtBeginLogitsProcessor([4], 8),
            stock.ForcedEOSTokenLogitsProcessor(12, 1),
        ]
    )
    row = RowProcessors(built, row=1, rows=2)
    encoded = mirrored_bytes(row.mirrored(3), V)
    rng = np.random.default_rng(4)
    text = rng.integers(2, V, 9).tolist()
    rows = torch.from_numpy(rng.normal(size=(8, V)).astype(np.float32))
    expected = row.scores(torch.tensor([[0, 0, 0, *text]]), rows.clone())
    assert_same(told(encoded, text, 2, rows), expected)


class Own(LogitsProcessor):
    """The caller's own: nobody knows what it does."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


class OwnPenalty(stock.RepetitionPenaltyLogitsProcessor):
    """One whose name says less than it does."""


def test_what_is_no_public_function_of_ids_is_left_out_and_the_rest_keeps_its_order() -> None:
    every = [
        Own(),
        stock.NoRepeatNGramLogitsProcessor(2),
        stock.PrefixConstrainedLogitsProcessor(lambda _, ids: [1], 1),
        OwnPenalty(1.5),
        stock.TemperatureLogitsWarper(0.5),
        stock.RepetitionPenaltyLogitsProcessor(1.5),
    ]
    assert mirrored(every) == [NoRepeatNgram(0, 2), Repetition(0, 1.5)]


def test_ids_of_the_targets_padding_are_left_out() -> None:
    engine, context = opened({"suppress_tokens": [V - 1, 3]})
    (only,) = decode_processors(mirrored_bytes(engine.processors(context), V - 1), V - 1)
    assert only.ids == (3,)  # type: ignore[union-attr]


POLICY = ProposalPolicy(Layout.DENSE, 3, 1.0)


@pytest.mark.parametrize("options", SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, PROMPT[:3]]], ids=["alone", "batch"])
def test_the_target_as_its_own_drafter_is_accepted(
    options: dict[str, Any], prompts: list[list[int]]
) -> None:
    """q is p but for its rounding: through generate, every draft is accepted but for that."""
    model = tiny_llama(V)
    with local_drafter(model, model) as drafter:
        reports: list[Report] = []
        for seed in range(4):
            run(
                model,
                prompts,
                drafter,
                do_sample=True,
                top_k=0,
                max_new_tokens=12,
                policy=POLICY,
                seed=seed,
                reports=reports,
                **options,
            )
        assert drafter.agreed is not None
        assert drafter.agreed.mirrors
    accepted, rejected = (sum(getattr(each, name) for each in reports) for name in _KINDS)
    assert accepted > 20
    # The prompt's padding counts as text for transformers' repetition penalty alone.
    assert rejected <= (3 if len(prompts) > 1 else 0)


_KINDS = ("accepted", "rejected")


@pytest.mark.parametrize("mirror", [True, False])
def test_a_drafter_of_another_vocabulary_applies_them_to_the_targets_ids(mirror: bool) -> None:
    """The target's weights with its ids in another order: q is p where all ids are shared."""
    options = SETS["several"] | {"sequence_bias": [[[4], 2.5], [[2, 9], -3.0]]}
    target = HfTargetEngine(
        tiny_llama(V, seed=3), tiny_tokenizer(V), identity=b"t" * 32, options=options
    )
    program = DrafterProgram(shared_engine(()), DrafterConfig(max_support=V))
    accepted = rejected = 0
    with LocalDrafter(program, target, mirror=mirror) as drafter:
        assert drafter.connect().mirrors is mirror
        for seed in range(8):
            sampling = Sampling(seed=seed, max_tokens=12, repetition_penalty=0.8)
            with generate(target, drafter, PROMPT, sampling, POLICY) as text:
                list(text)
            accepted += text.report.accepted
            rejected += text.report.rejected
    assert accepted > 20
    assert (rejected == 0) is mirror
