"""STEP's ``context_version``: what p depends on beside the ids of the prefix, in 32 bits.

Sampling parameters, processors with their settings, stop rules and a grammar make the context of a
request; a grammar's state follows from the ids and is no part of it. Every STEP carries the version
of its context and the answer repeats it, so that a proposal asked under another one is never used.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from draftwire.exact.words import RequestKey
from draftwire.verifier.sampling import Sampling

_LABEL: Final = b"draftwire ctx v1"  # BLAKE2b takes 16 bytes of it
_VERSION_BYTES: Final = 4
_ARRAY_BYTES: Final = 16
_DEPTH: Final = 4
MOST_VALUES: Final = 4096  # of one attribute: they are looked at twice a round
_PLAIN: Final = (bool, int, float, str, bytes, type(None))

Context = TypeVar("Context", contravariant=True)


@runtime_checkable
class HasSettings(Protocol[Context]):
    """A target engine whose processors are part of the version; the others have none to name."""

    def settings(self, context: Context) -> bytes:
        """Return what its processors are and how they are set now.

        Other bytes where a setting has changed that the engine can see; see
        :func:`object_settings` for what is left out.
        """


class RequestContext:
    """What the p of one request depends on beside its ids; it may change between rounds."""

    def __init__(
        self, target: Any, key: RequestKey, sampling: Sampling, end_tokens: Iterable[int]
    ) -> None:
        """Take the request's own part; nothing of its processors has been looked at yet."""
        self._key = key
        self._sampling = sampling_settings(sampling, end_tokens)
        self._settings_of = target.settings if isinstance(target, HasSettings) else None
        self._processors: bytes | None = None  # as they were last looked at

    def changed(self, context: Any) -> int | None:
        """Return the version, where p depends on something else than when it was last looked at."""
        processors = b"" if self._settings_of is None else self._settings_of(context)
        if processors == self._processors:
            return None
        self._processors = processors
        return context_version(self._key, self._sampling + processors)


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
    """Return the types of objects and what their attributes are set to now.

    Plain values; sequences, sets and mappings of such, nested too; arrays and tensors, by type and
    a digest of their values. Left out, so that a change of them is not seen: attributes of more
    than ``MOST_VALUES`` values or nested deeper than four times, other objects (models, functions,
    grammars), and ``__slots__``.
    """
    said = []
    for each in objects:
        attributes: Mapping[str, Any] = getattr(each, "__dict__", {})
        seen = {
            name: _setting(value, iter(range(MOST_VALUES))) for name, value in attributes.items()
        }
        known = sorted((name, value) for name, value in seen.items() if value is not None)
        said.append((type(each).__module__, type(each).__qualname__, known))
    return repr(said).encode()


def _setting(value: Any, left: Iterator[int], depth: int = _DEPTH) -> str | None:
    """Return what an attribute is set to, or None where it is left out. left: one a value."""
    if next(left, None) is None:
        return None
    if isinstance(value, _PLAIN):
        return repr(value)
    if all(hasattr(value, name) for name in ("shape", "dtype", "tolist")):
        if math.prod(value.shape) > MOST_VALUES:
            return None
        numbers = repr(value.tolist()).encode()
        digest = hashlib.blake2b(numbers, digest_size=_ARRAY_BYTES).hexdigest()
        return f"{tuple(value.shape)} {value.dtype} {digest}"
    if isinstance(value, Mapping):
        value, kind = value.items(), "mapping"
    elif isinstance(value, list | tuple | set | frozenset):
        kind = "set" if isinstance(value, set | frozenset) else "sequence"
    else:
        return None
    if len(value) > MOST_VALUES or not depth:
        return None
    parts: list[str] = []
    for each in value:
        part = _setting(each, left, depth - 1)
        if part is None:
            return None
        parts.append(part)
    return f"{kind}({', '.join(parts if kind == 'sequence' else sorted(parts))})"
