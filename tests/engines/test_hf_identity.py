"""Identities: equal for equal content, different for any change; the real vocabulary; the pair."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, require_pair
from draftwire.engines.hf.identity import (
    checkpoint_identity,
    model_identity,
    real_vocabulary,
    tokenizer_hash,
)
from draftwire.errors import ModelError, PairMismatchError
from draftwire.wire.identity import id_map_hash
from testing.harness.tiny_models import save, tiny_llama, tiny_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model"), tiny_llama(16), tiny_tokenizer(16))


def test_checkpoint_identity_is_that_of_the_content(saved: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(saved, tmp_path / "elsewhere"))
    assert checkpoint_identity(copy) == checkpoint_identity(saved)
    assert len(checkpoint_identity(saved)) == 32
    (copy / "notes.txt").write_text("not part of the model")
    assert checkpoint_identity(copy) == checkpoint_identity(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_one_changed_byte_changes_the_checkpoint(saved: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    before = checkpoint_identity(copy)
    data = bytearray((copy / name).read_bytes())
    data[-1] ^= 1
    (copy / name).write_bytes(data)
    os.utime(copy / name, ns=(1, 1))
    assert checkpoint_identity(copy) != before


def test_files_are_read_again_only_when_they_changed(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = checkpoint_identity(saved)

    def fail(*args: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(hashlib, "file_digest", fail)
    assert checkpoint_identity(saved) == first


def test_a_folder_without_a_model_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no identity"):
        checkpoint_identity(tmp_path)


def test_model_identity_sees_every_weight_and_the_configuration() -> None:
    model = tiny_llama(16, layers=1, seed=11)
    before = model_identity(model)
    assert before == model_identity(model)
    assert before != model_identity(tiny_llama(16, layers=1, seed=12))
    with torch.no_grad():
        weight = model.model.norm.weight
        kept = weight[3].item()
        weight[3] = kept + 1
        assert model_identity(model) != before
        weight[3] = kept
    assert model_identity(model) == before


def offloaded() -> Any:
    config = tiny_llama(16, layers=1).config
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def packed() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        linear = {torch.nn.Linear}
        model = copy.deepcopy(tiny_llama(16, layers=1))
        return torch.ao.quantization.quantize_dynamic(model, linear, dtype=torch.qint8)


def with_sparse() -> Any:
    model = copy.deepcopy(tiny_llama(16, layers=1))
    head = model.lm_head.weight.detach().to_sparse()
    model.lm_head.weight = torch.nn.Parameter(head, requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("make", "what"),
    [(offloaded, "is offloaded"), (packed, "is packed"), (with_sparse, "is sparse")],
)
def test_m4_weights_that_are_not_plain_say_how_to_give_an_identity(
    make: Callable[[], Any], what: str
) -> None:
    with pytest.raises(ModelError, match=what) as caught:
        model_identity(make())
    for way in ("HfTargetEngine", "identity=checkpoint_identity", "--target-identity"):
        assert way in str(caught.value)


def bpe(merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    words = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(words, merges)))


def test_tokenizer_hash_sees_tokens_ids_merges_and_added_tokens() -> None:
    both = [("a", "b"), ("b", "c")]
    hashes = [tokenizer_hash(bpe(merges)) for merges in (both, both[::-1], both[:1])]
    added = bpe(both)
    added.add_tokens(["new"])
    hashes += [
        tokenizer_hash(added),
        tokenizer_hash(tiny_tokenizer(16)),
        tokenizer_hash(tiny_tokenizer(17)),
        tokenizer_hash(tiny_tokenizer(16, rename=7)),
    ]
    assert len(set(hashes)) == len(hashes)
    assert tokenizer_hash(bpe(both)) == hashes[0]


def test_tokenizer_hash_does_not_see_how_a_prompt_is_dressed(saved: Path) -> None:
    dressed = tiny_tokenizer(16)
    dressed.padding_side = "left"
    dressed.chat_template = "{{ messages }}"
    dressed.backend_tokenizer.enable_truncation(4)
    dressed.backend_tokenizer.enable_padding()
    assert tokenizer_hash(dressed) == tokenizer_hash(tiny_tokenizer(16))


def test_v17_the_engines_hash_the_map_that_changes_nothing() -> None:
    target = HfTargetEngine(tiny_llama(16), tiny_tokenizer(13), identity=bytes(32))
    assert target.id_map_hash == id_map_hash(range(13), 13)
    assert target.id_map_hash != id_map_hash([1, 0, *range(2, 13)], 13)


def test_v18_both_sides_agree_on_the_real_vocabulary() -> None:
    tokenizer = SimpleNamespace(get_vocab=lambda: {f"t{index}": index for index in range(151_669)})
    assert real_vocabulary(tokenizer, 151_936) == 151_669
    assert real_vocabulary(tokenizer, 152_064) == 151_669
    assert real_vocabulary(tokenizer, 151_000) == 151_000  # ids without logits cannot be made
    with pytest.raises(ModelError, match="knows no token"):
        real_vocabulary(SimpleNamespace(get_vocab=dict), 8)


def test_v18_a_pair_with_different_padding_is_a_pair() -> None:
    tokenizer = tiny_tokenizer(13)
    target = HfTargetEngine(tiny_llama(18), tokenizer)
    drafter = HfDraftEngine(tiny_llama(16, layers=1), tokenizer)
    assert target.vocab_size == drafter.vocab_size == 13
    require_pair(target, drafter)


@pytest.mark.parametrize(
    ("vocab_size", "rename", "field"), [(12, None, "vocab_size"), (13, 5, "tokenizer_hash")]
)
def test_models_that_are_no_pair_are_refused_by_field(
    vocab_size: int, rename: int | None, field: str
) -> None:
    target = HfTargetEngine(tiny_llama(16), tiny_tokenizer(13))
    drafter = HfDraftEngine(tiny_llama(16), tiny_tokenizer(vocab_size, rename=rename))
    with pytest.raises(PairMismatchError) as caught:
        require_pair(target, drafter)
    assert caught.value.field == field


def test_another_id_map_is_no_pair() -> None:
    target = HfTargetEngine(tiny_llama(16), tiny_tokenizer(13))
    adapted = SimpleNamespace(
        vocab_size=13,
        tokenizer_hash=target.tokenizer_hash,
        id_map_hash=id_map_hash([1, 0, *range(2, 13)], 13),
    )
    with pytest.raises(PairMismatchError) as caught:
        require_pair(target, adapted)
    assert caught.value.field == "id_map_hash"


def test_m7_a_drafter_narrower_than_its_tokenizer_serves_the_ids_that_have_logits() -> None:
    drafter = HfDraftEngine(tiny_llama(12), tiny_tokenizer(13))
    target = HfTargetEngine(tiny_llama(12), tiny_tokenizer(13))
    assert drafter.vocab_size == target.vocab_size == 12
    require_pair(target, drafter)
