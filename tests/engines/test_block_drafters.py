"""Block drafters: reference logits, sessions, and checkpoints that are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwire.drafter.engine import LimitsDepth, ReadsStates
from draftwire.drafter.hello import drafter_hello
from draftwire.drafter.program import DrafterConfig
from draftwire.engines.dspark.checkpoint import read_block_drafter
from draftwire.engines.dspark.engine import BlockContext, BlockDraftEngine
from draftwire.engines.registry import engine_of, load_drafter
from draftwire.errors import ConfigurationError, DraftwireError, ModelError
from testing.harness.tiny_models import tiny_tokenizer
from testing.toys.block_drafters import DEEPSPEC, DRAFTS, TOKENS, states_of, write_folder

GOLDEN: dict[str, Any] = json.loads(
    Path(__file__).with_name("block_drafters.json").read_text(encoding="utf-8")
)
ANCHOR = len(TOKENS) - 1
STATES = states_of(DEEPSPEC["hidden_size"])


def config_of(kind: str) -> dict[str, Any]:
    return {**DEEPSPEC, "markov_head_type": kind.split()[1]}


def folder_of(where: Path, name: str = "deepspec vanilla", **changes: Any) -> Path:
    return write_folder(where, {**config_of(name), **changes}, GOLDEN[name]["shapes"])


def engine_in(where: Path, name: str = "deepspec vanilla", **changes: Any) -> BlockDraftEngine:
    folder = folder_of(where, name, **changes)
    return BlockDraftEngine.from_folder(folder, tiny_tokenizer(29))


def rows(engine: BlockDraftEngine, context: BlockContext, tokens: Sequence[int]) -> torch.Tensor:
    """The logits of a round: after the committed tokens, and after each of DRAFTS."""
    first = engine.forward([(context, tokens)])
    return torch.cat([first, *(engine.forward([(context, [each])]) for each in DRAFTS)])


def whole(engine: BlockDraftEngine) -> BlockContext:
    """A context that holds all states and no token."""
    context = engine.open()
    engine.truncate(context, 0)
    engine.take_states(context, 0, STATES[:ANCHOR])
    return context


@pytest.mark.parametrize("name", GOLDEN)
def test_rows_and_confidences_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    engine = engine_in(tmp_path, name)
    made = rows(engine, whole(engine), TOKENS)
    due = torch.tensor(GOLDEN[name]["logits"])
    assert made.dtype is torch.float32
    assert (made - due).abs().max() < 1e-5
    assert due.std(0).min() > 0.01  # every column says something
    drafter = read_block_drafter(tmp_path)
    anchor = torch.tensor([[TOKENS[-1]]])
    states = torch.from_numpy(STATES[:ANCHOR])[None]
    keys = drafter.state_keys(drafter.fuse(states), torch.arange(ANCHOR)[None])
    hidden = drafter.block(anchor, torch.tensor([[ANCHOR]]), keys)[0]
    head, sure = drafter.markov_head, drafter.confidence_head
    assert head is not None
    assert sure is not None
    before = head.before(torch.tensor([TOKENS[-1], *DRAFTS]))
    assert (sure(hidden, before) - torch.tensor(GOLDEN[name]["confidences"])).abs().max() < 1e-5


@pytest.mark.parametrize("name", GOLDEN)
def test_a_session_has_the_rows_of_a_fresh_one_however_it_got_there(
    name: str, tmp_path: Path
) -> None:
    engine = engine_in(tmp_path, name)
    due = rows(engine, whole(engine), TOKENS)
    context = engine.open()
    engine.truncate(context, 0)
    engine.take_states(context, 0, STATES[:4])
    rows(engine, context, [*TOKENS[:4], 27])  # a round whose drafts are rejected
    engine.truncate(context, 4)
    engine.take_states(context, 4, engine.fuse(STATES[4:7]))  # fused rows are the same as raw ones
    rows(engine, context, TOKENS[4:8])
    assert engine.states_held(context) == 7
    engine.truncate(context, 8)
    engine.take_states(context, 7, STATES[7:ANCHOR])
    made = rows(engine, context, TOKENS[8:])
    assert engine.states_held(context) == ANCHOR
    assert (made - due).abs().max() < 1e-5


def test_a_row_is_the_same_in_any_batch_to_the_bit(tmp_path: Path) -> None:
    engine = engine_in(tmp_path)
    alone = engine.forward([(whole(engine), TOKENS)])
    other = engine.open()
    engine.truncate(other, 0)
    both = engine.forward([(other, [1, 2, 3]), (whole(engine), TOKENS)])
    assert torch.equal(both[1], alone[0])
    assert engine.open_sessions == 3


def test_states_move_the_rows_and_missing_ones_are_left_out(tmp_path: Path) -> None:
    engine = engine_in(tmp_path)
    due = engine.forward([(whole(engine), TOKENS)])
    without = engine.open()
    engine.truncate(without, 0)
    blind = engine.forward([(without, TOKENS)])
    assert engine.states_held(without) == 0
    partly = engine.open()
    engine.truncate(partly, 0)
    engine.take_states(partly, 0, STATES[:3])
    engine.take_states(partly, 6, STATES[6:ANCHOR])
    assert engine.states_held(partly) == 3
    gapped = engine.forward([(partly, TOKENS)])
    for one, two in ((due, blind), (due, gapped), (blind, gapped)):
        assert (one - two).abs().max() > 1e-2
        assert bool(torch.isfinite(one).all())
    again = engine.open()
    engine.truncate(again, 0)
    engine.take_states(again, 0, STATES[:ANCHOR])
    engine.take_states(again, 0, STATES[:ANCHOR])  # sent again: in the place of those held
    assert torch.equal(engine.forward([(again, TOKENS)]), due)


def test_a_state_of_the_anchor_itself_is_not_read(tmp_path: Path) -> None:
    engine = engine_in(tmp_path)
    context = engine.open()
    engine.truncate(context, 0)
    engine.take_states(context, 0, STATES)
    assert torch.equal(
        engine.forward([(context, TOKENS)]), engine.forward([(whole(engine), TOKENS)])
    )


def test_a_block_holds_so_many_drafts_and_hello_says_so(tmp_path: Path) -> None:
    engine = engine_in(tmp_path)
    assert isinstance(engine, LimitsDepth)
    assert isinstance(engine, ReadsStates)
    assert drafter_hello(engine, DrafterConfig()).max_depth == engine.max_depth == 5
    context = whole(engine)
    rows(engine, context, TOKENS)
    with pytest.raises(ConfigurationError, match="a block holds 5 drafts"):
        engine.forward([(context, [1])])


def test_closing_frees_what_is_held(tmp_path: Path) -> None:
    engine = engine_in(tmp_path)
    context = whole(engine)
    engine.forward([(context, TOKENS)])
    engine.close(context)
    assert (engine.open_sessions, context.length, len(context.states)) == (0, 0, 0)


# Checkpoints -------------------------------------------------------------------------------------


def test_a_folder_is_recognised_by_its_config(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "drafter")
    tiny_tokenizer(29).save_pretrained(folder)
    assert engine_of(folder) == "dspark"
    assert engine_of(None) == "hf"
    assert isinstance(load_drafter(folder, device="cpu"), BlockDraftEngine)


def test_the_tokenizer_may_stand_in_the_targets_folder(tmp_path: Path) -> None:
    folder, target = folder_of(tmp_path / "drafter"), tmp_path / "target"
    with pytest.raises(ConfigurationError, match=r"no tokenizer.*--target-weights FOLDER"):
        load_drafter(folder, device="cpu")
    tiny_tokenizer(29).save_pretrained(target)
    save_file({}, target / "model.safetensors")
    assert load_drafter(folder, device="cpu", target=target).vocab_size == 29


def test_a_head_that_is_the_embedding_may_be_left_out(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    drafter = read_block_drafter(folder)
    assert torch.equal(drafter.lm_head.weight, drafter.embed_tokens.weight)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no mask": ({"mask_token_id": None}, "mask_token_id None is no whole number"),
    "no layers": ({"target_layer_ids": []}, "target_layer_ids is no list of layers"),
    "falling layers": ({"target_layer_ids": [2, 0]}, r"target_layer_ids \[2, 0\] do not rise"),
    "the embedding": ({"target_layer_ids": [-1, 2]}, "do not rise from 0 on"),
    "another head": ({"markov_head_type": "mlp"}, "'mlp' is none of vanilla, gated, rnn"),
    "sliding": ({"layer_types": ["sliding_attention"] * 2}, "layer_types other than"),
    "no layer": ({"num_hidden_layers": 0}, "num_hidden_layers 0 is no whole number"),
    "one more layer": ({"num_hidden_layers": 3}, r"misses layers\.2\..* and 7 more"),
    "one layer less": ({"num_hidden_layers": 1}, r"also has layers\.1\."),
    "another width": ({"intermediate_size": 12}, r"has layers\.0\.mlp\.\w+_proj\.weight \("),
    "no confidence": ({"enable_confidence_head": False}, r"also has confidence_head\.proj"),
    "Gemma 4": ({"architectures": ["Gemma4DSparkModel"]}, "Gemma 4 is not supported"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_checkpoint_that_is_not_what_its_config_says_is_refused_in_a_sentence(
    name: str, tmp_path: Path
) -> None:
    changes, said = BROKEN[name]
    folder = folder_of(tmp_path, **changes)
    with pytest.raises(ModelError, match=said) as refused:
        read_block_drafter(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("config", ["{", "[]", "{}"])
def test_a_config_that_is_none_is_refused(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(ModelError):
        read_block_drafter(tmp_path)


def test_weights_that_are_not_there_or_no_safetensors_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match="cannot be read"):
        read_block_drafter(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no safetensors file"):
        read_block_drafter(folder)
    index = {"weight_map": {"fc.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelError, match="outside its folder"):
        read_block_drafter(folder)


def test_another_vocabulary_is_not_served(tmp_path: Path) -> None:
    from draftwire.engines.registry import ServedVocabulary

    folder = folder_of(tmp_path)
    with pytest.raises(DraftwireError, match="serves its target's vocabulary alone"):
        load_drafter(folder, device="cpu", serve_as=ServedVocabulary(size=28))


def test_states_are_binary32_rows_of_the_layers_that_are_named(tmp_path: Path) -> None:
    form = engine_in(tmp_path).state_format
    assert (form.layers, form.width, form.elements, form.fused) == ((0, 2), 16, 32, False)
    assert STATES.dtype == np.float32
