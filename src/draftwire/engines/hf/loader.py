"""Loading a causal language model and its tokenizer from a folder, without any network."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from draftwire.engines.hf.sequence import require_usable
from draftwire.errors import ModelError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to be used, its tokenizer, and the folder both came from."""

    model: Any
    tokenizer: Any
    folder: Path


def load_folder(folder: str | Path, *, device: str = "cpu", dtype: Any = None) -> LoadedModel:
    """Load a transformers causal language model folder, offline and without running its code.

    device: where the weights go. dtype: a torch dtype; None keeps the checkpoint's. Raises
    ModelError saying what the folder lacks: it is no folder, has no ``config.json``, no weights, no
    tokenizer, weights that are damaged or incomplete, or a model of another kind; or that there is
    no such device, before the weights are read for it.
    """
    path = Path(folder).expanduser()
    _require_files(path)
    _placed(torch.empty(0), device)
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    with quiet():
        config = attempt(path, "configuration", AutoConfig.from_pretrained)
        if getattr(config, "is_encoder_decoder", False):
            raise ModelError(f"{path} holds an encoder-decoder; a causal language model is needed")
        model, info = attempt(
            path,
            "weights",
            AutoModelForCausalLM.from_pretrained,
            output_loading_info=True,
            trust_remote_code=False,
            **options,
        )
        _require_complete(path, info)
        tokenizer = attempt(path, "tokenizer", AutoTokenizer.from_pretrained)
    model = _placed(model, device).eval()
    require_usable(model)
    return LoadedModel(model=model, tokenizer=tokenizer, folder=path)


def load_tokenizer(folder: str | Path) -> Any:
    """Load only the tokenizer of a model folder, offline. Raises ModelError."""
    path = Path(folder).expanduser()
    _require_folder(path)
    _require_tokenizer(path)
    with quiet():
        return attempt(path, "tokenizer", AutoTokenizer.from_pretrained)


def configured_width(folder: str | Path) -> int:
    """Return how many ids a folder's config.json speaks of; 2^62 where it names no number."""
    try:
        config = json.loads((Path(folder).expanduser() / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    except (OSError, ValueError, AttributeError):
        return 1 << 62
    return size if isinstance(size, int) and size > 0 else 1 << 62


EMBEDDED: Final = ("target", "drafter", "dspark")
"""The models that ship with the package; both drafters are the target's."""


def embedded_folder(role: str) -> Path:
    """Return the folder of a model that ships with the package: target, drafter or dspark.

    Raises ModelError when this installation has none.
    """
    folder = Path(str(importlib.resources.files("draftwire"))) / "models" / role
    if role not in EMBEDDED:
        raise ModelError(f"there is no embedded model {role!r}; there are {', '.join(EMBEDDED)}")
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"the embedded {role} is not in this installation ({folder}); "
            "reinstall draftwire or name a model folder"
        )
    return folder


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        raise ModelError(f"{path} is not a folder; give the folder of a transformers model")


def _require_tokenizer(path: Path) -> None:
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(f"{path} has no tokenizer (looked for {', '.join(TOKENIZER_FILES)})")


def _require_files(path: Path) -> None:
    _require_folder(path)
    config = path / "config.json"
    if not config.is_file():
        raise ModelError(f"{path} is not a transformers model: it has no config.json")
    _require_object(config)
    generation = path / "generation_config.json"
    if generation.is_file():  # transformers would go on without a damaged one, and its end tokens
        _require_object(generation)
    if not any(any(path.glob(pattern)) for pattern in WEIGHT_PATTERNS):
        raise ModelError(f"{path} has no weights (looked for {', '.join(WEIGHT_PATTERNS)})")
    _require_tokenizer(path)


def _require_object(path: Path) -> None:
    try:
        readable = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except (UnicodeDecodeError, json.JSONDecodeError):
        readable = False
    if not readable:
        raise ModelError(f"{path} is not a JSON object")


def _require_complete(path: Path, info: Any) -> None:
    # transformers fills what is missing with random numbers and only warns.
    for kind in ("missing_keys", "mismatched_keys"):
        names = sorted(str(name) for name in info.get(kind) or ())
        if names:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            words = kind.replace("_", " ")
            raise ModelError(f"the weights in {path} do not fit its config.json: {words} {shown}")


def attempt(path: Path, what: str, load: Any, **options: Any) -> Any:
    """Load one part of a model's folder; ModelError says which part could not be."""
    try:
        return load(str(path), local_files_only=True, **options)
    except Exception as error:  # any of a dozen types, depending on the file that is damaged
        raise ModelError(f"cannot load the {what} in {path}: {first_line(error)}") from error


def _placed(weights: Any, device: str) -> Any:
    """Put weights on a device; whatever torch says of one that is not there is a ModelError."""
    try:
        placed = weights.to(device)
    except Exception as error:  # RuntimeError, AssertionError, NotImplementedError: as it pleases
        raise ModelError(
            f"the model cannot be put on device {device!r} ({first_line(error)}): cpu always works"
        ) from error
    if placed.device.type == "meta":
        raise ModelError("device 'meta' holds no weights: cpu always works")
    return placed


def first_line(error: Exception) -> str:
    """Return what a library says of its failure, without the pages that may follow."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from talking: no progress bars, no warnings."""
    shown = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()
