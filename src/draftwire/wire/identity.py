"""What a model is to HELLO, and its hashes as pure functions of bytes and ids.

Reading files is left to the engines.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from draftwire.errors import ConfigurationError, PairMismatchError

IDENTITY_BYTES: Final = 32  # SHA-256


class ModelIdentity(Protocol):
    """What HELLO says of a model, a target or a drafter; hashes are of 32 bytes."""

    @property
    def vocab_size(self) -> int:
        """The real vocabulary size V, without padding."""

    @property
    def max_context(self) -> int:
        """Most tokens that a sequence may hold, prompt included."""

    @property
    def identity(self) -> bytes:
        """SHA-256 of the checkpoint."""

    @property
    def tokenizer_hash(self) -> bytes:
        """SHA-256 of the tokenizer."""

    @property
    def id_map_hash(self) -> bytes:
        """SHA-256 of the global id map."""


@dataclass(frozen=True, slots=True)
class IdMap:
    """Global id of each of the drafter's own ids: ``ids[local]``, injective into [0, vocab_size).

    It may be shorter than the vocabulary (a smaller draft vocabulary) and leaves padding out.
    Errors: PairMismatchError ``id_map_hash`` for an id outside [0, V) or one that comes twice.
    """

    vocab_size: int
    ids: Sequence[int]

    def __post_init__(self) -> None:
        """Refuse a map that leaves the vocabulary or sends two ids to one."""
        outside = next((entry for entry in self.ids if not 0 <= entry < self.vocab_size), None)
        if outside is not None:
            raise PairMismatchError(
                "id_map_hash",
                f"the id map names {outside}, outside the vocabulary [0, {self.vocab_size})",
            )
        if len(set(self.ids)) != len(self.ids):
            raise PairMismatchError("id_map_hash", "the id map sends two ids to the same global id")

    @classmethod
    def native(cls, vocab_size: int) -> IdMap:
        """Return the map that changes nothing, of a drafter that speaks the target's vocabulary."""
        return cls(vocab_size, range(vocab_size))

    def hash(self) -> bytes:
        """Return the 32 bytes of HELLO's ``id_map_hash``: V as u32, then the ids as i32."""
        packed = struct.pack(f"<I{len(self.ids)}i", self.vocab_size, *self.ids)
        return labelled_sha256("draftwire id map v1", (packed,))


def parse_identity(text: object) -> bytes:
    """Return the 32 bytes of an identity as ``serve`` and ``doctor`` print it.

    Raises ConfigurationError for anything but 64 hexadecimal digits.
    """
    try:
        identity = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        identity = b""
    if len(identity) != IDENTITY_BYTES or len(str(text)) != 2 * IDENTITY_BYTES:
        raise ConfigurationError(
            f"an identity is a SHA-256, {2 * IDENTITY_BYTES} hexadecimal digits, not {text!r}"
        )
    return identity


def require_identity(name: str, identity: bytes) -> None:
    """Raise ConfigurationError for a configured identity that is none; all zero = any."""
    if len(identity) != IDENTITY_BYTES:
        raise ConfigurationError(f"{name} must be {IDENTITY_BYTES} bytes, not {len(identity)}")


def id_map_hash(ids: Sequence[int], vocab_size: int) -> bytes:
    """Return the hash of a map that is checked first; see :class:`IdMap`."""
    return IdMap(vocab_size, ids).hash()


def labelled_sha256(label: str, parts: Iterable[bytes]) -> bytes:
    """Return SHA-256 over a label, a zero byte and the parts, so that kinds never meet."""
    hasher = hashlib.sha256(label.encode("ascii") + b"\0")
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def files_hash(label: str, files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the identity of a set of files from (name, SHA-256 of its content), in name order.

    Names are framed by their length (u64), so that no two sets give the same bytes.
    """
    parts = []
    for name, digest in sorted(files):
        raw = name.encode()
        parts += [struct.pack("<Q", len(raw)), raw, digest]
    return labelled_sha256(label, parts)
