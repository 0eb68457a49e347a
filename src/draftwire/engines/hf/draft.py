"""A transformers model as drafter: tokens in, logits out, one KV cache a session."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Final, cast

import torch

from draftwire.engines.hf.batch import Feed, batched
from draftwire.engines.hf.identity import (
    checkpoint_identity,
    model_identity,
    real_vocabulary,
    tokenizer_hash,
)
from draftwire.engines.hf.loader import LoadedModel, load_folder
from draftwire.engines.hf.rope import ModelSequence, open_sequence
from draftwire.engines.hf.self_test import require_conforming
from draftwire.engines.hf.sequence import (
    context_limit,
    logits_width,
    require_usable,
)
from draftwire.errors import ModelError
from draftwire.wire.identity import IdMap
from draftwire.wire.registry import Adaptation

_LOG: Final = logging.getLogger("draftwire.drafter")

LONGEST_TOGETHER: Final = 8  # tokens of a feed that shares its pass; decided by the feed alone


class HfDraftEngine:
    """Implements :class:`draftwire.drafter.engine.DraftEngine` for a causal language model.

    Each session has its own KV cache, and sessions share forward passes where the model allows it;
    either way a row is the same whatever else is in its batch, to the bit. Columns beyond the real
    vocabulary are cut off, so a padded id has no q; a token without a logit is no part of it.
    Raises ModelError for a model that cannot be read or rolled back. One that fails the self-test
    is used, and the log says so: any q is lossless, but few drafts that depend on the cut into
    passes are accepted.
    """

    adaptation = Adaptation.NATIVE

    def __init__(
        self, model: Any, tokenizer: Any, *, identity: bytes | None = None, together: bool = True
    ) -> None:
        """Take a model; ``identity`` None hashes its weights once.

        together: let sessions share passes where that can be had; it is tried out now.
        """
        require_usable(model)
        self._model = model
        self._batched = batched(model) if together else None
        self._sessions: set[ModelSequence] = set()
        self.vocab_size = real_vocabulary(tokenizer, logits_width(model))
        self.max_context = context_limit(model)
        self.identity = model_identity(model) if identity is None else identity
        try:
            require_conforming(model, self.vocab_size, self.identity)
        except ModelError as error:
            if error.__cause__ is not None:  # not read at all, rather than read otherwise
                raise
            _LOG.warning("the drafter is used, but few of its drafts may be accepted: %s", error)
        self.tokenizer_hash = tokenizer_hash(tokenizer)
        self.id_map_hash = IdMap.native(self.vocab_size).hash()

    @classmethod
    def from_folder(
        cls, folder: str | Path, *, device: str = "cpu", together: bool = True
    ) -> HfDraftEngine:
        """Load a model folder offline. Raises ModelError."""
        return cls.from_loaded(load_folder(folder, device=device), together=together)

    @classmethod
    def from_loaded(cls, loaded: LoadedModel, *, together: bool = True) -> HfDraftEngine:
        """Use a loaded folder; its identity is the folder's."""
        identity = checkpoint_identity(loaded.folder)
        return cls(loaded.model, loaded.tokenizer, identity=identity, together=together)

    @property
    def batches(self) -> bool:
        """Whether sessions share forward passes; else they are run one after another."""
        return self._batched is not None

    @property
    def open_sessions(self) -> int:
        """Contexts that are open now."""
        return len(self._sessions)

    def open(self) -> ModelSequence:
        """Return a new context that holds no tokens."""
        context = open_sequence(self._model)
        self._sessions.add(context)
        return context

    def close(self, context: ModelSequence) -> None:
        """Free what the context holds; it is not used again."""
        context.truncate(0)
        self._sessions.discard(context)

    def context_bytes(self, context: ModelSequence) -> int:
        """Return the bytes of a context's cache."""
        return context.bytes

    def truncate(self, context: ModelSequence, length: int) -> None:
        """Keep the state of the first ``length`` tokens."""
        context.truncate(length)

    def forward(self, batch: Sequence[tuple[ModelSequence, Sequence[int]]]) -> torch.Tensor:
        """Feed new tokens to each context and return the logits after the last one of each.

        Returns binary32 (B, V) on the model's device. Short feeds share one pass; a longer one,
        such as a prompt, has a pass of its own, by its own length alone. When the model raises, the
        contexts whose pass it was and those that it had not come to are as before.
        """
        if self._batched is None:
            return torch.stack([self._alone(context, tokens) for context, tokens in batch])
        shared = [len(tokens) <= LONGEST_TOGETHER for _, tokens in batch]
        logits: list[torch.Tensor | None] = [
            None if short else self._alone(*each) for short, each in zip(shared, batch, strict=True)
        ]
        if any(shared):
            # Where passes are shared, every context is plain: no table of positions switches.
            together = cast(Sequence[Feed], batch)
            rows = iter(self._batched.forward(list(compress(together, shared))))
            logits = [next(rows) if row is None else row for row in logits]
        return torch.stack([row[: self.vocab_size] for row in logits if row is not None])

    def _alone(self, context: ModelSequence, tokens: Sequence[int]) -> torch.Tensor:
        return context.forward(tokens)[0, : self.vocab_size]
