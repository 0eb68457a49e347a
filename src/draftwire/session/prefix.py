"""A committed prefix that only grows, and its incremental digest (prefix_digest of STEP)."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DIGEST_BYTES: Final = 16


class Prefix:
    """Committed tokens with the BLAKE2b-128 of them as int32 little-endian.

    Growing by n tokens costs O(n), whatever the length. Ids must fit into an int32.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._tokens = array("i")
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.extend(tokens)

    def __len__(self) -> int:
        """Tokens held."""
        return len(self._tokens)

    def tokens(self, begin: int = 0, end: int | None = None) -> tuple[int, ...]:
        """Return the tokens at positions ``begin`` up to, not including, ``end``."""
        return tuple(self._tokens[begin:end])

    def extend(self, tokens: Sequence[int]) -> None:
        """Commit ``tokens``."""
        raw = _little_endian(tokens)
        self._tokens.extend(tokens)
        self._hash.update(raw)

    def digest(self) -> bytes:
        """Return the digest of the prefix."""
        return self._hash.copy().digest()

    def digest_with(self, tokens: Sequence[int]) -> bytes:
        """Return the digest of the prefix followed by ``tokens``, which are not committed."""
        ahead = self._hash.copy()
        ahead.update(_little_endian(tokens))
        return ahead.digest()

    def common(self, other: Prefix) -> int:
        """Return how many tokens two prefixes have in common from the start."""
        return common_tokens(self._tokens, other._tokens)


def common_tokens(one: array[int], other: array[int]) -> int:
    """Return how many tokens two sequences have in common from the start."""
    same, most = 0, min(len(one), len(other))
    while same < most:  # halves that are compared as memory is
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same


@dataclass(frozen=True, slots=True)
class Cached:
    """Tokens whose state the model surely holds: ``prefix[:length]``, then ``drafts``.

    The prefix may be that of a generation which is over.
    """

    prefix: Prefix
    length: int
    drafts: tuple[int, ...] = ()

    def common(self, prefix: Prefix) -> int:
        """Return how many of them still stand at the start of ``prefix``."""
        same = self.prefix is prefix  # within a generation a prefix only grows
        length = self.length if same else min(prefix.common(self.prefix), self.length)
        if length < self.length:
            return length
        following = prefix.tokens(length, length + len(self.drafts))
        for token, draft in zip(following, self.drafts, strict=False):
            if token != draft:
                break
            length += 1
        return length


def _little_endian(tokens: Sequence[int]) -> array[int]:
    values = array("i", tokens)
    if sys.byteorder == "big":
        values.byteswap()
    return values
