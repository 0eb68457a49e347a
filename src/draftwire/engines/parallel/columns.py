"""One rank's part of a model: the whole trunk, and its own columns of the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftwire.engines.hf.identity import checkpoint_identity, real_vocabulary, tokenizer_hash
from draftwire.engines.hf.loader import load_folder
from draftwire.engines.hf.rope import ModelSequence, exact_context, open_sequence
from draftwire.engines.hf.self_test import require_conforming
from draftwire.engines.hf.sequence import logits_width
from draftwire.engines.hf.target import end_tokens
from draftwire.errors import ModelError
from draftwire.kernels.shards.shard import Shard, even_shards
from draftwire.wire.identity import IdMap


@dataclass(frozen=True, slots=True)
class ModelColumns:
    """What a rank has of a model. ``shard``: its columns; their ids are global.

    vocab_size: real tokens; the shards of a padded model cover its padding too.
    """

    model: Any
    shard: Shard
    vocab_size: int
    max_context: int
    identity: bytes
    tokenizer_hash: bytes
    end_tokens: frozenset[int]
    tokenizer: Any = None

    @property
    def id_map_hash(self) -> bytes:
        """SHA-256 of the global id map."""
        return IdMap.native(self.vocab_size).hash()

    def shards(self) -> list[Shard]:
        """The columns of every rank."""
        own = self.shard
        return [
            own_shard(self.vocab_size, own.vocab_size, rank, own.size) for rank in range(own.size)
        ]

    def sequence(self) -> ModelSequence:
        """A new sequence that holds no tokens."""
        return open_sequence(self.model)

    def logits(
        self, sequence: ModelSequence, tokens: Sequence[int], keep: int = 1
    ) -> NDArray[np.float32]:
        """Feed tokens and return this rank's columns after each of the last ``keep``.

        Returns binary32 (keep, width).
        """
        return np.ascontiguousarray(sequence.forward(tokens, keep).cpu().numpy())


def load_columns(
    folder: str | Path, rank: int, size: int, *, device: str = "cpu", real_only: bool = False
) -> ModelColumns:
    """Load a model folder and keep one rank's columns of its head.

    real_only: leave padding of the vocabulary out, as a drafter does. Raises ModelError for a model
    whose head is not a plain linear layer, those of ``load_folder``, and for a target those of the
    self-test, which needs the whole head.
    """
    loaded = load_folder(folder, device=device)
    model = loaded.model
    width = logits_width(model)
    real = real_vocabulary(loaded.tokenizer, width)
    shard = own_shard(real, real if real_only else width, rank, size)
    identity = checkpoint_identity(loaded.folder)
    if not real_only:
        require_conforming(model, real, identity)
    split_head(model, shard)
    return ModelColumns(
        model=model,
        shard=shard,
        vocab_size=real,
        max_context=exact_context(model),
        identity=identity,
        tokenizer_hash=tokenizer_hash(loaded.tokenizer),
        end_tokens=end_tokens(model.generation_config),
        tokenizer=loaded.tokenizer,
    )


def own_shard(real: int, width: int, rank: int, size: int) -> Shard:
    """A rank's ids: an even part of the real ones, and on the last rank the padding beyond them.

    So a target's rank owns the real ids of the drafter's rank beside it, padded or not (P29).
    """
    even = even_shards(real, size)[rank]
    return Shard(width, even.begin, width if rank == size - 1 else even.end, rank, size)


def split_head(model: Any, shard: Shard) -> None:
    """Replace a model's head by its rows for one shard; embeddings tied to it stay whole."""
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise ModelError(f"the head of {type(model).__name__} is no plain linear layer to split")
    with torch.no_grad():
        part = torch.nn.Linear(1, 1, bias=head.bias is not None, device="meta")
        part.in_features, part.out_features = head.in_features, shard.width
        own = slice(shard.begin, shard.end)
        part.weight = torch.nn.Parameter(head.weight[own].clone(), requires_grad=False)
        if head.bias is not None:
            part.bias = torch.nn.Parameter(head.bias[own].clone(), requires_grad=False)
    model.set_output_embeddings(part)
