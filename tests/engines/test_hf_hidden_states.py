"""Hidden states out of transformers targets (case M13): the committed text's, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine
from draftwire.engines.hf.rope import BorderedSequence
from draftwire.engines.hf.sequence import CachedSequence
from draftwire.engines.hf.states import KeptStates, state_tap
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import HiddenDtype, Layout
from draftwire.wire.states import StateFormat
from testing.harness.architectures import tiny_model
from testing.harness.tiny_models import tiny_llama, tiny_sliding, tiny_tokenizer
from tests.engines.hook_calls import PROMPT, V, run

LAYERS = (0, 1)
POLICY = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=V)


class Reading(HfDraftEngine):
    """A drafter that keeps what it is given of the target's states, by session and position."""

    width = 16

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.read: dict[int, dict[int, np.ndarray]] = {}
        self.state_format = StateFormat(LAYERS, self.width, HiddenDtype.FLOAT32)

    def fuse(self, rows: np.ndarray) -> np.ndarray:
        raise NotImplementedError("rows are raw here")

    def truncate(self, context: Any, length: int) -> None:
        super().truncate(context, length)
        held = self.read.setdefault(id(context), {})
        for position in [each for each in held if each >= length]:
            del held[position]

    def take_states(self, context: Any, first: int, rows: np.ndarray) -> None:
        self.read[id(context)].update(zip(range(first, first + len(rows)), rows, strict=True))

    def states_held(self, context: Any) -> int:
        held = self.read[id(context)]
        return next(at for at in range(len(held) + 1) if at not in held)


def reading(model: Any, vocab_size: int = V, draft: Any = None, **options: Any) -> LocalDrafter:
    tokenizer = tiny_tokenizer(vocab_size)
    draft = tiny_llama(vocab_size, layers=1, seed=4) if draft is None else draft
    engine = Reading(draft, tokenizer, identity=b"d" * 32)
    width = model.get_input_embeddings().weight.shape[1]
    engine.state_format = StateFormat(LAYERS, width, HiddenDtype.FLOAT32)
    config = DrafterConfig(max_sessions=8, max_slots=8, max_support=min(vocab_size, 256))
    options = {"state_dtype": HiddenDtype.FLOAT32} | options
    target = HfTargetEngine(model, tokenizer, identity=b"t" * 32)
    client = LocalDrafter(DrafterProgram(engine, config), target, **options)
    client.engine = engine  # type: ignore[attr-defined]
    return client


def states_of(model: Any, ids: Sequence[int]) -> np.ndarray:
    """What transformers calls the states of a text, (T, n x d)."""
    with torch.inference_mode():
        given = model(input_ids=torch.tensor([list(ids)]), output_hidden_states=True)
    return torch.cat([given.hidden_states[each + 1][0] for each in LAYERS], -1).float().numpy()


def require_read(client: LocalDrafter, model: Any, texts: Sequence[Sequence[int]]) -> None:
    """Each session has read the states of its own text, of all but the last few tokens."""
    sessions = [each for each in client.engine.read.values() if each]  # type: ignore[attr-defined]
    assert len(sessions) == len(texts)
    found = set()
    for held in sessions:
        count = len(held)
        assert sorted(held) == list(range(count))
        rows = np.stack([held[at] for at in range(count)])
        fits = [
            number
            for number, text in enumerate(texts)
            if len(text) > count
            and np.allclose(rows, states_of(model, text)[:count], rtol=1e-4, atol=1e-4)
        ]
        assert fits
        found.update(fits)
        assert count >= len(texts[fits[0]]) - 6
    assert found == set(range(len(texts)))


MODELS = {
    "llama": lambda: tiny_llama(V, dtype=torch.float64),
    "sliding": lambda: tiny_sliding(V, 4),
}


@pytest.mark.parametrize("name", MODELS)
def test_generate_sends_the_states_of_the_committed_text(name: str) -> None:
    model = MODELS[name]()
    target = HfTargetEngine(model, tiny_tokenizer(V), identity=b"t" * 32)
    with reading(model) as client:
        sampling = Sampling(seed=3, max_tokens=40)
        with generate(target, client, PROMPT, sampling, POLICY) as text:
            tokens = [each.token for each in text]
            assert text.report.rejected > 3
        require_read(client, model, [[*PROMPT, *tokens]])


@pytest.mark.parametrize("name", MODELS)
def test_the_hook_sends_them_in_one_row_and_in_several(name: str) -> None:
    """A batch is one packed pass of the target, whose states are taken apart again."""
    model = MODELS[name]()
    for prompts in ([PROMPT], [PROMPT, [3], [12, 5, 5, 8]]):
        with reading(model) as client:
            out = run(
                model, prompts, client, do_sample=True, seed=2, max_new_tokens=24, eos_token_id=None
            )
            longest = max(map(len, prompts))
            texts = [
                row[longest - len(prompt) :].tolist()
                for row, prompt in zip(out, prompts, strict=True)
            ]
            require_read(client, model, texts)


def test_a_model_whose_states_roll_back_by_copies_sends_the_right_ones() -> None:
    """A hybrid reads some tokens again after a rejection; their states are the same."""
    model = tiny_model("qwen3_next")
    size = model.config.vocab_size
    tokenizer = tiny_tokenizer(size)
    target = HfTargetEngine(model, tokenizer, identity=b"t" * 32)
    with reading(model, size) as client:
        policy = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=size)
        with generate(target, client, PROMPT, Sampling(seed=3, max_tokens=30), policy) as text:
            tokens = [each.token for each in text]
            assert text.report.rejected > 3
        require_read(client, model, [[*PROMPT, *tokens]])


class Opened(HfTargetEngine):
    """Shows the context of its latest request."""

    def open(self, prompt: Sequence[int], sampling: Sampling) -> Any:
        self.context = super().open(prompt, sampling)
        return self.context


def test_layers_that_are_asked_for_late_are_kept_from_then_on() -> None:
    model = tiny_llama(V, dtype=torch.float64)
    target = Opened(model, tiny_tokenizer(V), identity=b"t" * 32, options={"eos_token_id": None})
    sampling = Sampling(seed=3, max_tokens=40)
    with reading(model) as client:
        tokens = []
        with generate(target, client, PROMPT, sampling, POLICY) as text:
            for emission in text:
                tokens.append(emission.token)
                if len(tokens) == 8:
                    target.keep_states(target.context, (1,))  # as of a drafter that has gone
                    target.keep_states(target.context, LAYERS)
        (held,) = [each for each in client.engine.read.values() if each]  # type: ignore[attr-defined]
    due = states_of(model, [*PROMPT, *tokens])
    assert 0 in held
    assert max(held) > len(PROMPT) + 25
    for position, row in held.items():
        np.testing.assert_allclose(row, due[position], rtol=1e-4, atol=1e-4)


def test_kept_states_follow_a_sequence_that_is_read_again() -> None:
    tap = state_tap(tiny_llama(V))
    kept = KeptStates(tap, (1,))

    def rows(*numbers: int) -> list[torch.Tensor]:
        return [torch.tensor([[float(each)] * 16 for each in numbers])]

    kept.add(3, rows(3, 4, 5))
    assert (kept.first, kept.end) == (3, 6)
    kept.add(5, rows(50, 60))
    assert kept.rows(3, 9)[:, 0].tolist() == [3, 4, 50, 60]
    kept.add(1, rows(10, 20))
    assert (kept.first, kept.end) == (1, 3)
    kept.add(9, rows(9))
    assert (kept.first, kept.rows(9, 10)[:, 0].tolist()) == (9, [9.0])
    assert kept.rows(4, 2).shape == (0, 16)


def test_the_last_layer_is_what_transformers_says_it_is() -> None:
    """Behind the last norm in most models; tried, not listed."""
    model = tiny_llama(V)
    tap = state_tap(model)
    assert tap.modules == ("model.layers.0", "model.norm")
    assert tap.width == 16
    assert state_tap(model) is tap


def hooks_of(module: torch.nn.Module) -> list[object]:
    """Ours among them: transformers has some of its own where states were once asked for."""
    hooks = vars(module)["_forward_hooks"].values()
    return [each for each in hooks if each.__module__ == state_tap.__module__]


def test_a_model_whose_states_nobody_reads_has_no_hooks() -> None:
    torch.manual_seed(5)
    model = LlamaForCausalLM(tiny_llama(V).config).eval()
    tap = state_tap(model)
    assert tap.layers == 2
    assert not any(hooks_of(module) for module in model.modules())
    sequence = CachedSequence(model)
    sequence.forward([3, 4])
    assert not any(hooks_of(module) for module in model.modules())
    for _ in range(2):  # hooked once
        sequence.states = KeptStates(tap, LAYERS)
        sequence.forward([5])
        hooks = [len(hooks_of(model.get_submodule(name))) for name in tap.modules]
        assert hooks == [1, 1]
        assert sequence.states.end == sequence.length


def test_a_model_whose_layers_are_no_list_has_no_states() -> None:
    tap = state_tap(tiny_model("gemma3n_text"))
    assert tap.layers == 0


def test_both_readings_at_a_rope_border_are_kept() -> None:
    sequence = BorderedSequence(tiny_llama(V), 4)
    kept = KeptStates(state_tap(tiny_llama(V)), LAYERS)
    sequence.states = kept
    sequence.forward([3, 4, 5], 1)
    assert kept.end == 3
    sequence.forward([6, 7, 8], 2)
    assert (kept.first, kept.end) == (0, 6)
    assert np.allclose(kept.rows(0, 6), states_of(tiny_llama(V), [3, 4, 5, 6, 7, 8]), atol=1e-4)
