"""Who a model is: hashes of checkpoint, tokenizer and id map, and the real vocabulary size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from draftwire.engines.identity import checkpoint_of_files, framed
from draftwire.errors import ModelError
from draftwire.wire.identity import labelled_sha256
from draftwire.wire.registry import MAX_VOCABULARY

IDENTITY_PATTERNS = ("config.json", "*.safetensors", "*.index.json", "pytorch_model*.bin")


def checkpoint_identity(folder: str | Path) -> bytes:
    """Return the SHA-256 of a model folder: configuration and weights, each file under its name.

    32 bytes. Files are streamed; a file's digest is remembered in this process until its time, size
    or inode changes. Raises ModelError when the folder has none of these files.
    """
    path = Path(folder).expanduser().resolve()
    names = sorted({file.name for pattern in IDENTITY_PATTERNS for file in path.glob(pattern)})
    if "config.json" not in names or len(names) < 2:
        raise ModelError(f"{path} has no config.json or no weights: it has no identity")
    return checkpoint_of_files(path / name for name in names)


def model_identity(model: Any) -> bytes:
    """Return the SHA-256 of a model in memory: its configuration and every weight, in name order.

    32 bytes; another value than :func:`checkpoint_identity` of the folder it came from. Reads all
    weights once. Raises ModelError for weights that are not plain dense tensors here (offloaded,
    packed, sparse): their identity has to be given.
    """
    return labelled_sha256("draftwire model v1", _model_parts(model))


def _model_parts(model: Any) -> Iterator[bytes]:
    config = dict(model.config.to_dict())
    config.pop("transformers_version", None)
    config.pop("_name_or_path", None)
    yield framed(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(_state(model).items()):
        reason = _not_plain(tensor)
        if reason is None:
            head = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
            try:
                flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                data = flat.numpy().tobytes()
            except (RuntimeError, TypeError, NotImplementedError) as error:
                reason = f"cannot be read as bytes ({type(error).__name__})"
        if reason is not None:
            raise _unhashable(model, f"{name} {reason}")
        yield framed(head.encode())
        yield data


def _state(model: Any) -> dict[str, Any]:
    try:
        return dict(model.state_dict())
    except (RuntimeError, NotImplementedError) as error:
        raise _unhashable(model, f"they cannot be listed ({type(error).__name__})") from error


def _not_plain(value: Any) -> str | None:
    """Return in words what keeps a weight's bytes from being its content, or None."""
    if not isinstance(value, torch.Tensor):
        return f"is packed ({type(value).__name__})"
    if value.is_meta:
        return "is offloaded: only its shape is here"
    if value.is_quantized:
        return "is quantised"
    if value.layout is not torch.strided:
        return "is sparse"
    if is_traceable_wrapper_subclass(value):
        return f"is a {type(value).__name__}"
    return None


def _unhashable(model: Any, what: str) -> ModelError:
    return ModelError(
        f"the weights of {type(model).__name__} in memory have no identity: {what}; give the"
        " checkpoint's as identity=checkpoint_identity(FOLDER) to HfTargetEngine, HfDraftEngine or"
        " RemoteDrafter.for_model (the 32 bytes that --target-identity and --draft-identity name)"
    )


def tokenizer_hash(tokenizer: Any) -> bytes:
    """Return the SHA-256 of a tokenizer's content: tokens in id order, merges, added tokens.

    32 bytes. What only changes how a prompt is dressed (templates, truncation, padding side) is
    left out: a sequence of ids means the same text when these parts are equal.
    """
    by_id = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = json.loads(backend.to_str()) if backend is not None else {}
    merges = [
        merge.split(" ") if isinstance(merge, str) else list(merge)
        for merge in content.get("model", {}).get("merges") or ()
    ]
    added = sorted(
        (index, token.content) for index, token in tokenizer.added_tokens_decoder.items()
    )
    canonical = json.dumps([by_id, merges, added], ensure_ascii=True, separators=(",", ":"))
    return labelled_sha256("draftwire tokenizer v1", (canonical.encode(),))


def real_vocabulary(tokenizer: Any, width: int) -> int:
    """Return V: one past the largest id that the tokenizer knows, at most ``width`` logits.

    Models pad their vocabulary to a round number, each in its own way; only the tokenizer knows
    which ids are tokens. Raises ModelError outside 1..2^24.
    """
    vocabulary = tokenizer.get_vocab()
    if not vocabulary:
        raise ModelError("the tokenizer knows no token")
    size = min(1 + max(vocabulary.values()), width)
    if not 1 <= size <= MAX_VOCABULARY:
        raise ModelError(f"a vocabulary of {size} ids; 1 to {MAX_VOCABULARY} are allowed")
    return int(size)
