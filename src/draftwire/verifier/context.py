"""STEP's ``context_version``: what p depends on beside the ids of the prefix, in 32 bits.

Sampling parameters, processors with their settings, stop rules and a grammar make the context of a
request; a grammar's state follows from the ids and is no part of it. Every STEP carries the version
of its context and the answer repeats it, so that a proposal asked under another one is never used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from draftwire.exact.words import RequestKey
from draftwire.verifier.sampling import Sampling

_LABEL: Final = b"draftwire ctx v1"  # BLAKE2b takes 16 bytes of it
_VERSION_BYTES: Final = 4
_PLAIN: Final = (bool, int, float, str, bytes, type(None))

Context = TypeVar("Context", contravariant=True)


@runtime_checkable
class HasSettings(Protocol[Context]):
    """A target engine whose processors are part of the version; the others have none to name."""

    def settings(self, context: Context) -> bytes:
        """Return what its processors are and how they are set now; equal bytes, equal p."""


def context_version(key: RequestKey, settings: bytes) -> int:
    """Return the version of a context, 1..2^32 - 1; 0 stays free for "not said".

    BLAKE2b-32 keyed with the request's seed and stream, so that the drafter learns whether a
    context has changed and nothing of what is in it.
    """
    secret = key.seed.to_bytes(16, "little") + key.stream.to_bytes(8, "little")
    digest = hashlib.blake2b(settings, digest_size=_VERSION_BYTES, key=secret, person=_LABEL)
    return int.from_bytes(digest.digest(), "little") or 1


def sampling_settings(sampling: Sampling, end_tokens: Iterable[int]) -> bytes:
    """Return a request's own part of its context: its sampling but for the seed, and the ends."""
    said = [
        float(sampling.temperature),
        float(sampling.top_p),
        sampling.top_k,
        float(sampling.min_p),
        float(sampling.repetition_penalty),
        sampling.max_tokens,
        sampling.stop,
        sorted(end_tokens),
    ]
    return repr(said).encode()


def object_settings(*objects: Any) -> bytes:
    """Return the types of objects and those of their attributes that are plain values."""
    said = []
    for each in objects:
        attributes: Mapping[str, Any] = getattr(each, "__dict__", {})
        plain = {name: value for name, value in attributes.items() if isinstance(value, _PLAIN)}
        said.append((type(each).__module__, type(each).__qualname__, sorted(plain.items())))
    return repr(said).encode()
