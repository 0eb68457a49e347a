"""A drafter that serves as another vocabulary: the target's ids, on those that it shares.

Any q is lossless, so a drafter may draft on the ids whose text it knows and give the others none.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, Self, TypeVar

import torch

from draftwire.drafter.engine import DraftContext, DraftEngine, MeasuresContexts
from draftwire.engines.hf.identity import tokenizer_hash
from draftwire.engines.hf.vocabulary import Spelling, Vocabulary, compare
from draftwire.errors import ConfigurationError
from draftwire.wire.identity import IdMap
from draftwire.wire.registry import Adaptation

_LOG: Final = logging.getLogger("draftwire.drafter")

Own = TypeVar("Own", bound=DraftContext)


@dataclass(slots=True)
class SharedContext(Generic[Own]):
    """A sequence in the target's ids. own: the drafter's, in its own ids.

    ends: length of ``own`` after each token that was fed. unread: tokens behind them that its
    context had no room for.
    """

    own: Own
    ends: list[int] = field(default_factory=list)
    unread: int = 0

    @property
    def length(self) -> int:
        """Tokens of the target that have been taken."""
        return len(self.ends) + self.unread


class SharedVocabularyEngine(Generic[Own]):
    """Implements :class:`draftwire.drafter.engine.DraftEngine` over another, in a target's ids.

    shared: of the target's ids, those with a partner, and the partner's own id. A row has the
    partners' logits at these ids and -infinity elsewhere. spelt: what is fed for a committed id
    without a partner. Raises ConfigurationError where no id is shared.
    """

    adaptation = Adaptation.NATIVE  # what it says and hears are the target's own ids

    def __init__(
        self,
        engine: DraftEngine[Own],
        shared: Mapping[int, int],
        vocab_size: int,
        tokenizer_hash: bytes,
        spelt: Callable[[int], Sequence[int]],
    ) -> None:
        """Take an engine, the map into its ids, and what its HELLO is to say."""
        known = sorted((t, own) for t, own in shared.items() if own < engine.vocab_size)
        known = [(t, own) for t, own in known if t < vocab_size]
        if not known:
            raise ConfigurationError(
                "the drafter shares no id with the target's tokenizer, so it could propose nothing:"
                " choose a drafter whose tokenizer has tokens of equal text"
            )
        self.shared = dict(known)
        self.vocab_size = vocab_size
        self.max_context = engine.max_context
        self.identity = engine.identity
        self.tokenizer_hash = tokenizer_hash
        self.id_map_hash = IdMap.native(vocab_size).hash()
        self._engine = engine
        self._spelt = cache(lambda index: tuple(spelt(index)))
        self._columns = torch.tensor([t for t, _ in known])
        self._sources = torch.tensor([own for _, own in known])

    @classmethod
    def between(
        cls,
        engine: DraftEngine[Own],
        tokenizer: Any,
        target_tokenizer: Any,
        vocab_size: int | None = None,
    ) -> Self:
        """Serve a target's tokenizer. vocab_size: the target's V; None = all that it knows."""
        target = Vocabulary.of(target_tokenizer, vocab_size)
        drafter = Vocabulary.of(tokenizer, engine.vocab_size)
        spelling = Spelling(target, drafter, tokenizer)
        shared = compare(target, drafter).shared
        _LOG.info("drafts on %d of the target's %d ids", len(shared), target.size)
        return cls(engine, shared, target.size, tokenizer_hash(target_tokenizer), spelling)

    @classmethod
    def resized(cls, engine: DraftEngine[Own], vocab_size: int) -> Self:
        """Serve one tokenizer at a target's number of logits, more or fewer than the drafter's."""
        common = {index: index for index in range(min(vocab_size, engine.vocab_size))}
        return cls(engine, common, vocab_size, engine.tokenizer_hash, lambda index: (0,))

    def open(self) -> SharedContext[Own]:
        """Return a new context that holds no tokens."""
        return SharedContext(self._engine.open())

    def close(self, context: SharedContext[Own]) -> None:
        """Free what the context holds."""
        self._engine.close(context.own)

    def context_bytes(self, context: SharedContext[Own]) -> int:
        """Return the bytes of the model's context; of one that has not read all: too many."""
        if context.unread or not isinstance(self._engine, MeasuresContexts):
            return sys.maxsize
        return self._engine.context_bytes(context.own)

    def truncate(self, context: SharedContext[Own], length: int) -> None:
        """Keep the state of the first ``length`` tokens."""
        context.unread = max(0, length - len(context.ends))
        if length < len(context.ends):
            self._engine.truncate(context.own, context.ends[length - 1] if length else 0)
            del context.ends[length:]

    def forward(self, batch: Sequence[tuple[SharedContext[Own], Sequence[int]]]) -> torch.Tensor:
        """Feed at least one token to each context and return the logits in the target's ids.

        Returns binary32 (B, V) where the model computes. A context that its model has no more room
        for gets a row that is even over the shared ids.
        """
        feeds, at = [], []
        for place, (context, tokens) in enumerate(batch):
            pieces = [self._own(token) for token in tokens]
            new = [own for piece in pieces for own in piece]
            if context.unread or context.own.length + len(new) > self._engine.max_context:
                continue
            feeds.append((context, pieces, new))
            at.append(place)
        try:
            logits = self._engine.forward([(each.own, new) for each, _, new in feeds]) if at else []
        except BaseException:
            for context, _, _ in feeds:  # some may have been fed
                self._engine.truncate(context.own, context.ends[-1] if context.ends else 0)
            raise
        fed = set(at)
        for place, (context, tokens) in enumerate(batch):
            if place not in fed:
                context.unread += len(tokens)
        for context, pieces, new in feeds:
            end = context.own.length - len(new)
            for piece in pieces:
                end += len(piece)
                context.ends.append(end)
        return self._rows(len(batch), at, logits)

    def _own(self, token: int) -> Sequence[int]:
        partner = self.shared.get(token)
        return self._spelt(token) if partner is None else (partner,)

    def _rows(self, count: int, at: Sequence[int], logits: Any) -> torch.Tensor:
        given = torch.as_tensor(logits)
        columns = self._columns.to(given.device)
        rows = torch.full((count, self.vocab_size), -torch.inf, device=given.device)
        if len(at) < count:
            rows[:, columns] = 0.0
        if at:
            taken = given.float()[:, self._sources.to(given.device)]
            rows[torch.tensor(at, device=given.device)[:, None], columns] = taken
        return rows
