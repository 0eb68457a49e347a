"""Loading model folders offline: what works, and one clear error for each thing that is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from draftwire.engines.hf import loader as loading
from draftwire.engines.hf.loader import embedded_folder, load_folder, load_tokenizer
from draftwire.errors import ModelError
from testing.harness.tiny_models import save, tiny_llama, tiny_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model"), tiny_llama(16), tiny_tokenizer(16))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_a_saved_model_loads_without_a_network(folder: Path) -> None:
    loaded = load_folder(folder)
    assert not loaded.model.training
    assert len(loaded.tokenizer.get_vocab()) == 16
    assert loaded.folder == folder
    assert load_tokenizer(folder).get_vocab() == loaded.tokenizer.get_vocab()


def test_both_embedded_models_load() -> None:
    for role in ("target", "drafter"):
        loaded = load_folder(embedded_folder(role))
        assert loaded.model.config.vocab_size == len(loaded.tokenizer.get_vocab())


@pytest.mark.parametrize("device", ["nope", "meta", "cuda:99"])
def test_a_device_that_is_not_there(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before anything is loaded for it."""
    monkeypatch.setattr(loading, "attempt", lambda *what, **options: pytest.fail(str(what)))
    with pytest.raises(ModelError, match="cpu always works"):
        load_folder(folder, device=device)


def test_an_unknown_embedded_model_is_refused() -> None:
    with pytest.raises(ModelError, match="there are target, drafter, dspark"):
        embedded_folder("other")


def test_a_path_that_is_no_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", Path(__file__)):
        with pytest.raises(ModelError, match="is not a folder"):
            load_folder(path)
        with pytest.raises(ModelError, match="is not a folder"):
            load_tokenizer(path)


def test_a_folder_without_a_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b""])
def test_a_configuration_that_is_no_json_object(folder: Path, content: bytes, name: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match="not a JSON object"):
        load_folder(folder)


def test_a_configuration_of_no_known_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(ModelError, match="cannot load the configuration"):
        load_folder(folder)


def test_an_encoder_decoder(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 16}))
    with pytest.raises(ModelError, match="encoder-decoder"):
        load_folder(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        load_folder(folder)


def test_damaged_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load the weights"):
        load_folder(folder)


def test_incomplete_weights_are_not_filled_with_random_numbers(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing keys model\.layers\.1\.mlp\.up_proj"):
        load_folder(folder)


def test_weights_of_another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 24}))
    with pytest.raises(ModelError, match="weights"):
        load_folder(folder)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        load_folder(folder)
    with pytest.raises(ModelError, match="no tokenizer"):
        load_tokenizer(folder)


def test_a_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the tokenizer"):
        load_folder(folder)
