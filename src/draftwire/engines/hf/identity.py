"""Who a model is: hashes of checkpoint, tokenizer and id map, and the real vocabulary size."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftwire.errors import ModelError, PairMismatchError
from draftwire.wire.identity import ModelIdentity, files_hash, labelled_sha256
from draftwire.wire.registry import MAX_VOCABULARY

IDENTITY_PATTERNS = ("config.json", "*.safetensors", "*.index.json", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True)
class _FileStamp:
    modified: int
    size: int
    inode: int
    digest: bytes


_digests: dict[Path, _FileStamp] = {}


def checkpoint_identity(folder: str | Path) -> bytes:
    """Return the SHA-256 of a model folder: configuration and weights, each file under its name.

    32 bytes. Files are streamed; a file's digest is remembered in this process until its time, size
    or inode changes. Raises ModelError when the folder has none of these files.
    """
    path = Path(folder).expanduser().resolve()
    names = sorted({file.name for pattern in IDENTITY_PATTERNS for file in path.glob(pattern)})
    if "config.json" not in names or len(names) < 2:
        raise ModelError(f"{path} has no config.json or no weights: it has no identity")
    digests = ((name, _file_digest(path / name)) for name in names)
    return files_hash("draftwire checkpoint v1", digests)


def model_identity(model: Any) -> bytes:
    """Return the SHA-256 of a model in memory: its configuration and every weight, in name order.

    32 bytes; another value than :func:`checkpoint_identity` of the folder it came from. Reads all
    weights once.
    """
    return labelled_sha256("draftwire model v1", _model_parts(model))


def _model_parts(model: Any) -> Iterator[bytes]:
    config = dict(model.config.to_dict())
    config.pop("transformers_version", None)
    config.pop("_name_or_path", None)
    yield _framed(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        head = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield _framed(head.encode())
        yield flat.numpy().tobytes()


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


def require_pair(target: ModelIdentity, drafter: ModelIdentity) -> None:
    """Refuse two models that do not speak the same ids. Raises PairMismatchError with the field."""
    if target.vocab_size != drafter.vocab_size:
        raise PairMismatchError(
            "vocab_size",
            f"the target knows {target.vocab_size} tokens, the drafter {drafter.vocab_size} "
            "(padding not counted): they are not a pair",
        )
    if target.tokenizer_hash != drafter.tokenizer_hash:
        raise PairMismatchError(
            "tokenizer_hash",
            "target and drafter have different tokenizers: the same id means different text",
        )
    if target.id_map_hash != drafter.id_map_hash:
        raise PairMismatchError("id_map_hash", "target and drafter were set up for other id maps")


def _framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _file_digest(path: Path) -> bytes:
    status = path.stat()
    known = _digests.get(path)
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    if known is not None and (known.modified, known.size, known.inode) == stamp:
        return known.digest
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").digest()
    _digests[path] = _FileStamp(*stamp, digest)
    return digest
