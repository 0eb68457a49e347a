"""What a block drafter is made of: one description, whatever format its checkpoint has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class MarkovKind(Enum):
    """How the token just drawn moves the next row; the names are those of checkpoints."""

    NONE = "none"
    VANILLA = "vanilla"
    GATED = "gated"
    RNN = "rnn"


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Sizes and kinds of a block drafter (DSpark, DFlash).

    target_layers: whose outputs it reads, 0 = of the target's first layer; each ``target_width``
    wide. block_size: rows of a pass, the anchor's among them. anchor_predicts: whether the anchor's
    row predicts the token behind it, as DSpark's does; otherwise row 0 predicts nothing, and row k
    predicts its own place, as DFlash's. config: of the layers, as transformers reads a Qwen3's.
    """

    vocab_size: int
    hidden_size: int
    target_layers: tuple[int, ...]
    target_width: int
    block_size: int
    mask_token: int
    max_context: int
    markov_kind: MarkovKind = MarkovKind.NONE
    markov_rank: int = 0
    confidence: bool = False
    confidence_reads_markov: bool = False
    anchor_predicts: bool = True
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def drafts(self) -> int:
        """The most drafts of a block."""
        return self.block_size - (not self.anchor_predicts)
