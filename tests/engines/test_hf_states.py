"""Models whose layers do not all crop (cases M5 and M6): every prefix is returned to exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftwire.engines.hf import HfTargetEngine
from draftwire.engines.hf.cache import cache_layers, crops
from draftwire.engines.hf.sequence import CachedSequence, continues, require_usable
from testing.harness.architectures import V, tiny_model
from testing.harness.hostile import LENGTH, POLICY, hostile_drafter
from testing.harness.tiny_models import fresh_logits, tiny_tokenizer
from tests.engines.hook_calls import run

TEXT = [3, 7, 2, 9, 4, 4, 8, 5, 6, 2, 3, 9, 7, 4, 11, 13, 2, 5]
# Largest measured distance of logits (of size up to 12) between one pass and passes over single
# tokens: 2e-5, where a state space is scanned in another order.
TOLERANCE = 2e-4

STATES = [
    "qwen3_next",
    "qwen3_5_text",
    "lfm2",
    "nemotron_h",
    "falcon_h1",
    "kimi_linear",
    "granitemoehybrid",
    "bamba",
    "mamba2",
    "jamba",
    "mamba",
    "deepseek_v4",
]
ONE_BY_ONE = {"jamba", "mamba"}
CROPPING = ["gemma3n_text", "gemma4_text", "deepseek_v32", "gpt_oss", "gemma3_text", "deepseek_v3"]


@pytest.fixture(params=STATES + CROPPING)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_model(request.param)


@pytest.mark.parametrize("name", STATES)
def test_a_model_with_states_is_usable_and_its_layers_say_so(name: str) -> None:
    model = tiny_model(name)
    require_usable(model)
    assert not all(map(crops, cache_layers(model)))
    assert continues(model) == (name not in ONE_BY_ONE)


@pytest.mark.parametrize("name", CROPPING)
def test_layers_that_crop_are_asked_and_not_listed(name: str) -> None:
    """Case M6: shared keys and values, indexed layers, sliding windows."""
    model = tiny_model(name)
    require_usable(model)
    assert all(map(crops, cache_layers(model)))


def test_rollback_to_every_length_equals_a_fresh_pass(model: Any) -> None:
    for length in range(0, len(TEXT) + 1, 3):
        sequence = CachedSequence(model)
        sequence.forward(TEXT[:7])
        sequence.forward(TEXT[7:], keep=5)
        sequence.truncate(length)
        assert sequence.length == length
        other = [*TEXT[:length], 11, 12, 5]
        rows = sequence.forward(other[length:], keep=3).numpy()
        assert sequence.tokens == tuple(other)
        assert set(sequence.layer_lengths()) <= {len(other)}
        np.testing.assert_allclose(rows, fresh_logits(model, other)[-3:], atol=TOLERANCE, rtol=0)


def test_a_text_after_rejections_at_every_place_is_that_of_generate(model: Any) -> None:
    """Cases M5 and M6, as target: greedy, with a drafter that is rejected at each place."""
    tokenizer = tiny_tokenizer(V)
    engine = HfTargetEngine(model, tokenizer, identity=b"t" * 32)
    options = {"do_sample": False, "max_new_tokens": LENGTH}
    alone = run(model, [TEXT], **options)[0].tolist()
    reports: list[Any] = []
    with hostile_drafter(engine, TEXT, alone[len(TEXT) :]) as drafter:
        drafted = run(model, [TEXT], drafter, policy=POLICY, seed=1, reports=reports, **options)
    assert drafted[0].tolist() == alone
    assert 0 < reports[0].accepted < reports[0].verified
