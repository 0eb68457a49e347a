"""How a request is sampled: everything that decides the target's law, and where the text ends."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from operator import index
from typing import SupportsFloat

from draftwire.errors import ConfigurationError
from draftwire.exact.words import RequestKey

SEED_LIMIT = 1 << 128
STREAM_LIMIT = 1 << 64
LEAST_TEMPERATURE = 1e-30
"""Logits divided by less are infinite in binary32, and then there is no p."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The request's own parameters; the drafter's are a ``ProposalPolicy``.

    temperature: 0 = greedy. top_p: (0, 1], 1 = off. top_k: 0 = off. min_p: [0, 1], 0 = off.
    repetition_penalty: > 0, 1 = off. seed: 0..2^128-1; None = 128 fresh random bits a request.
    stream: 0..2^64-1, tells apart requests that share a seed. max_tokens: >= 1. stop: strings that
    end the text with the token that completes one. NumPy's numbers are numbers too, and are kept as
    Python's. Raises ConfigurationError.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stream: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the field and what it may be."""
        for name in ("top_k", "stream", "max_tokens", *(() if self.seed is None else ("seed",))):
            object.__setattr__(self, name, self._whole(name))
        texts = isinstance(self.stop, tuple | list) and all(isinstance(s, str) for s in self.stop)
        _check(texts, "stop", "a tuple of strings")  # one string would be as many as it has letters
        object.__setattr__(self, "stop", tuple(self.stop))
        heat = self._finite("temperature")
        allowed = f"0 (greedy), or at least {LEAST_TEMPERATURE} and finite"
        _check(heat == 0 or heat >= LEAST_TEMPERATURE, "temperature", allowed)
        _check(0 < self._finite("top_p") <= 1, "top_p", "above 0 and at most 1 (1 = off)")
        _check(self.top_k >= 0, "top_k", "0 (off) or more")
        _check(0 <= self._finite("min_p") <= 1, "min_p", "between 0 (off) and 1")
        _check(self._finite("repetition_penalty") > 0, "repetition_penalty", "above 0 (1 = off)")
        _check(self.seed is None or 0 <= self.seed < SEED_LIMIT, "seed", "between 0 and 2^128 - 1")
        _check(0 <= self.stream < STREAM_LIMIT, "stream", "between 0 and 2^64 - 1")
        _check(self.max_tokens >= 1, "max_tokens", "1 or more")
        _check(all(self.stop), "stop", "made of strings that are not empty")

    def _finite(self, name: str) -> float:
        value = getattr(self, name)
        _check(isinstance(value, SupportsFloat), name, "a number")
        return float(value) if math.isfinite(value) else -1.0

    def _whole(self, name: str) -> int:
        value = getattr(self, name)
        try:
            return index(value)
        except TypeError:
            raise ConfigurationError(f"{name} must be a whole number") from None

    @property
    def greedy(self) -> bool:
        """Whether p is a point mass everywhere."""
        return self.temperature == 0

    def request_key(self) -> RequestKey:
        """Return the key of one request: the explicit seed's, or an independent one a call."""
        seed = int.from_bytes(os.urandom(16), "little") if self.seed is None else self.seed
        return RequestKey(seed=seed, stream=self.stream)


def _check(holds: bool, name: str, allowed: str) -> None:
    if not holds:
        raise ConfigurationError(f"{name} must be {allowed}")
