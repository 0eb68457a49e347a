"""Models whose layers do not all crop (cases M5 and M6): every prefix is returned to exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers.cache_utils import DynamicLayer

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine
from draftwire.engines.hf.cache import Copy, SequenceCache, cache_layers, crops
from draftwire.engines.hf.sequence import CachedSequence, continues, require_usable
from draftwire.errors import ModelError
from draftwire.verifier.local import LocalDrafter
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
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
    require_rollbacks(model)


def require_rollbacks(model: Any) -> None:
    """Fail where rows after a rollback are not those of one pass."""
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


def test_a_drafter_with_states_is_served_beside_others_and_its_drafts_are_used(model: Any) -> None:
    """Cases M5 and M6, as drafter: a copy of the target, so that every greedy draft is right."""
    target = HfTargetEngine(model, tokenizer := tiny_tokenizer(V), identity=b"t" * 32)
    engine = HfDraftEngine(model, tokenizer, identity=b"d" * 32)
    program = DrafterProgram(engine, DrafterConfig(max_support=V))
    options = {"do_sample": False, "max_new_tokens": LENGTH}
    alone = run(model, [TEXT], **options)[0].tolist()
    policy = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=1)
    reports: list[Any] = []
    with LocalDrafter(program, target) as drafter:
        drafted = run(model, [TEXT], drafter, policy=policy, seed=1, reports=reports, **options)
    assert drafted[0].tolist() == alone
    assert reports[0].accepted == reports[0].verified > LENGTH // 2


def test_the_copies_of_a_sequence_are_bounded_and_a_far_rollback_is_right() -> None:
    model = tiny_model("qwen3_next")
    sequence = CachedSequence(model)
    copies: list[int] = []
    save = SequenceCache.save

    def counted(cache: SequenceCache) -> None:
        save(cache)
        copies.append(len(cache.copies))

    text = [(7 * at + at * at) % (V - 3) + 3 for at in range(60)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SequenceCache, "save", counted)
        for token in text:
            sequence.forward([token])
    assert max(copies) == 3
    for length in (58, 41, 20, 5):
        sequence.truncate(length)
        row = sequence.forward([9]).numpy()
        expected = fresh_logits(model, [*text[:length], 9])[-1:]
        np.testing.assert_allclose(row, expected, atol=TOLERANCE, rtol=0)
        sequence.truncate(length)


def test_a_model_that_raises_between_its_layers_leaves_the_sequence_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("qwen3_next")
    sequence = CachedSequence(model)
    sequence.forward(TEXT[:12])
    sequence.forward(TEXT[12:14])

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:  # the state has taken the tokens, attention has not
        patch.setattr(model.model.layers[1], "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            sequence.forward([1, 2, 3])
    assert sequence.tokens == tuple(TEXT[:14])
    rows = sequence.forward(TEXT[14:], keep=2).numpy()
    np.testing.assert_allclose(rows, fresh_logits(model, TEXT)[-2:], atol=TOLERANCE, rtol=0)


def stale(cache: SequenceCache, length: int, *, failed: bool = False) -> None:
    """A rollback that crops attention and leaves the states as the rejected drafts made them."""
    for layer in cache.cache.layers:
        if hasattr(layer, "get_seq_length") and layer.get_seq_length() > length:
            DynamicLayer.crop(layer, length - layer.get_seq_length())
    cache.held = length


def shared(cache: SequenceCache) -> None:
    """Keep the states themselves in the place of copies: the next pass writes into them."""
    if cache.held:
        cache.copies = [Copy(cache.held, [dict(vars(layer)) for layer in cache.states])]


@pytest.mark.parametrize(("method", "mutant"), [("rewind", stale), ("save", shared)])
def test_a_mutant_that_keeps_the_state_of_rejected_drafts_is_caught(
    method: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("qwen3_next")
    monkeypatch.setattr(SequenceCache, method, mutant)
    with pytest.raises(AssertionError):
        require_rollbacks(model)


def test_the_self_test_refuses_a_state_that_is_not_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("qwen3_next")
    monkeypatch.setattr(SequenceCache, "rewind", stale)
    with pytest.raises(ModelError, match="how a text is cut into passes"):
        HfTargetEngine(model, tiny_tokenizer(V), identity=b"t" * 32)
