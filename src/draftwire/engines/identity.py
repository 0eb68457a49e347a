"""Who a model is, whatever its engine: hashes of its files, and whether two models are a pair."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from draftwire.errors import PairMismatchError
from draftwire.wire.identity import ModelIdentity, files_hash


@dataclass(frozen=True, slots=True)
class _FileStamp:
    modified: int
    size: int
    inode: int
    digest: bytes


_digests: dict[Path, _FileStamp] = {}


def checkpoint_of_files(files: Iterable[Path]) -> bytes:
    """Return the SHA-256 of a checkpoint's files, each under its name; 32 bytes.

    Files are streamed; a file's digest is remembered in this process until its time, size or inode
    changes.
    """
    digests = ((file.name, _file_digest(file)) for file in files)
    return files_hash("draftwire checkpoint v1", digests)


def framed(data: bytes) -> bytes:
    """Return bytes behind their length (u64), so that parts stay apart."""
    return struct.pack("<Q", len(data)) + data


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
            "target and drafter have different tokenizers: the same id means different text; serve"
            " and demo take --vocabulary shared",
        )
    if target.id_map_hash != drafter.id_map_hash:
        raise PairMismatchError("id_map_hash", "target and drafter were set up for other id maps")


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
