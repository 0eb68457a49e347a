"""The KV cache of one sequence: extended, rolled back, and never a trace of what was rejected."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from draftwire.engines.hf.sequence import (
    CachedSequence,
    context_limit,
    logits_width,
    require_usable,
)
from draftwire.errors import ConfigurationError, ModelError
from testing.harness.tiny_models import fresh_logits, tiny_llama, tiny_sliding

TEXT = [3, 7, 2, 9, 4, 4, 8, 5, 6, 2, 3, 9, 7, 4]
# Largest measured distance of logits (of size 10) between a cached and a fresh pass: 5e-6.
TOLERANCE = 5e-5

MODELS = {"llama": lambda: tiny_llama(16), "sliding": lambda: tiny_sliding(16, 4)}


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> object:
    return MODELS[request.param]()


def test_extending_in_any_chunks_equals_one_fresh_pass(model: object) -> None:
    expected = fresh_logits(model, TEXT)
    for size in (1, 2, 3, 5, len(TEXT)):
        sequence = CachedSequence(model)
        rows = []
        for start in range(0, len(TEXT), size):
            chunk = TEXT[start : start + size]
            rows.append(sequence.forward(chunk, keep=len(chunk)).numpy())
        np.testing.assert_allclose(np.concatenate(rows), expected, atol=TOLERANCE, rtol=0)
        assert sequence.tokens == tuple(TEXT)


def test_rollback_to_every_length_equals_a_fresh_pass(model: object) -> None:
    for length in range(len(TEXT) + 1):
        sequence = CachedSequence(model)
        sequence.forward(TEXT)
        sequence.truncate(length)
        assert sequence.length == length
        assert set(sequence.layer_lengths()) <= {length}
        other = [*TEXT[:length], 11, 12, 5]
        rows = sequence.forward(other[length:], keep=3).numpy()
        np.testing.assert_allclose(rows, fresh_logits(model, other)[-3:], atol=TOLERANCE, rtol=0)


def test_rollback_keeps_the_bits_of_the_prefix() -> None:
    model = tiny_llama(16)
    plain, rolled = CachedSequence(model), CachedSequence(model)
    for sequence in (plain, rolled):
        sequence.forward(TEXT[:6])
    rolled.forward([1, 2, 3, 4])
    rolled.truncate(6)
    assert torch.equal(plain.forward(TEXT[6:], keep=3), rolled.forward(TEXT[6:], keep=3))


def test_truncate_refuses_lengths_that_it_does_not_hold() -> None:
    sequence = CachedSequence(tiny_llama(16))
    sequence.forward([1, 2, 3])
    for length in (-1, 4):
        with pytest.raises(ConfigurationError, match="holds 3"):
            sequence.truncate(length)


@pytest.mark.parametrize(
    ("ids", "kept"),
    [([3, 7, 2, 9], 3), ([3, 7], 1), ([3, 5, 2, 9, 1], 1), ([8, 8], 0), ([3, 7, 2, 9, 4, 1], 4)],
)
def test_the_last_token_is_always_computed_again(ids: list[int], kept: int) -> None:
    sequence = CachedSequence(tiny_llama(16))
    sequence.forward([3, 7, 2, 9])
    sequence.truncate_to_prefix_of(ids)
    assert sequence.length == kept


def test_a_model_that_raises_leaves_the_sequence_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_llama(16)
    sequence = CachedSequence(model)
    sequence.forward(TEXT[:5])

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of memory")

    # The first layer has taken the tokens when the second fails.
    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[1], "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            sequence.forward([1, 2, 3])
    assert sequence.layer_lengths() == [5, 5]
    rows = sequence.forward(TEXT[5:], keep=1).numpy()
    np.testing.assert_allclose(rows, fresh_logits(model, TEXT)[-1:], atol=TOLERANCE, rtol=0)


def test_encoder_decoders_are_refused() -> None:
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    ).eval()
    with pytest.raises(ModelError, match="encoder-decoder"):
        require_usable(t5)


def test_a_model_with_dropout_on_is_refused() -> None:
    model = tiny_llama(16, layers=1, seed=5)
    model.train()
    try:
        with pytest.raises(ModelError, match="eval"):
            require_usable(model)
    finally:
        model.eval()


def test_width_and_context_are_those_of_the_model() -> None:
    assert logits_width(tiny_llama(16)) == 16
    assert context_limit(tiny_llama(16)) == 128
