"""Tiny engines whose probabilities are tables: what they say can be computed by hand.

A table is a function from the whole context (a tuple of ids) to V non-negative weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import Adaptation

Table = Callable[[tuple[int, ...]], Sequence[float]]

HASH = bytes(range(32))
TARGET_IDENTITY = b"t" * 32
DRAFT_IDENTITY = b"d" * 32


def mixed(vocab_size: int, salt: int, *, sharpness: float = 2.0) -> Table:
    """Return a context-dependent table: reproducible weights that look arbitrary."""

    def weights(context: tuple[int, ...]) -> Sequence[float]:
        seed = [salt, len(context), *(token + 1 for token in context[-3:])]
        scores = np.random.default_rng(seed).normal(size=vocab_size) * sharpness
        return [float(value) for value in np.exp(scores)]

    return weights


def constant(*weights: float) -> Table:
    """Return a table that is the same after every context."""
    return lambda context: weights


@dataclass
class ToyContext:
    """The tokens themselves stand for their state."""

    tokens: list[int] = field(default_factory=list)
    open: bool = True

    @property
    def length(self) -> int:
        """Tokens that it holds."""
        return len(self.tokens)


@dataclass
class ToyDrafter:
    """A DraftEngine over a table; counts what it holds, so that leaks show."""

    table: Table
    vocab_size: int
    max_context: int = 4096
    identity: bytes = DRAFT_IDENTITY
    tokenizer_hash: bytes = HASH
    id_map_hash: bytes = HASH
    adaptation: Adaptation = Adaptation.NATIVE
    contexts: list[ToyContext] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    extended: int = 0

    def open(self) -> ToyContext:
        """Return a context that holds nothing."""
        context = ToyContext()
        self.contexts.append(context)
        return context

    def close(self, context: ToyContext) -> None:
        """Free a context, once."""
        assert context.open
        context.open = False
        self.contexts.remove(context)

    def context_bytes(self, context: ToyContext) -> int:
        """Four bytes a token."""
        assert context.open
        return 4 * context.length

    def truncate(self, context: ToyContext, length: int) -> None:
        """Forget all tokens but the first ``length``."""
        assert context.open
        assert 0 <= length <= context.length
        del context.tokens[length:]

    def forward(self, batch: Sequence[tuple[ToyContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Take tokens in and return the logits after them: float32 (rows, V)."""
        assert len({id(context) for context, _ in batch}) == len(batch)
        self.batches.append(len(batch))
        rows = []
        for context, tokens in batch:
            assert context.open
            assert tokens
            context.tokens.extend(tokens)
            self.extended += len(tokens)
            rows.append(self.table(tuple(context.tokens)))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(np.asarray(rows, dtype=np.float64)).astype(np.float32)


@dataclass
class ToyRequest:
    """What a ToyTarget holds for one request."""

    sampling: Sampling
    committed: list[int]
    open: bool = True


@dataclass
class ToyTarget:
    """A TargetEngine over a table; ``bans`` masks ids by context, as a grammar would."""

    table: Table
    vocab_size: int
    max_context: int = 4096
    end_tokens: frozenset[int] = frozenset()
    identity: bytes = TARGET_IDENTITY
    tokenizer_hash: bytes = HASH
    id_map_hash: bytes = HASH
    bans: Callable[[tuple[int, ...]], set[int]] = lambda context: set()
    requests: list[ToyRequest] = field(default_factory=list)
    passes: int = 0

    def open(self, prompt: Sequence[int], sampling: Sampling) -> ToyRequest:
        """Begin a request."""
        request = ToyRequest(sampling, list(prompt))
        self.requests.append(request)
        return request

    def close(self, context: ToyRequest) -> None:
        """Free a request, once."""
        assert context.open
        context.open = False
        self.requests.remove(context)

    def p(self, sampling: Sampling, context: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the processed weights after ``context``."""
        weights = np.asarray(self.table(context), dtype=np.float64).copy()
        weights[list(self.bans(context))] = 0.0
        if sampling.greedy:
            best = int(np.argmax(weights))
            weights = np.zeros_like(weights)
            weights[best] = 1.0
        elif sampling.temperature != 1.0:
            weights = weights ** (1.0 / sampling.temperature)
        return weights

    def score(
        self, context: ToyRequest, committed: Sequence[int], drafts: Sequence[int]
    ) -> NDArray[np.float64]:
        """Return the processed weights at each draft and after the last: (K + 1, V)."""
        assert context.open
        assert list(committed[: len(context.committed)]) == context.committed
        context.committed = list(committed)
        self.passes += 1
        whole = tuple(committed) + tuple(drafts)
        return np.stack(
            [self.p(context.sampling, whole[: len(committed) + i]) for i in range(len(drafts) + 1)]
        )
