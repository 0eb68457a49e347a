"""A block drafter as drafter: one pass a proposal, then a row and a bias for each draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwire.engines.dspark.backbone import BlockDrafter
from draftwire.engines.dspark.checkpoint import read_block_drafter
from draftwire.engines.dspark.states import StateKeys
from draftwire.engines.hf.identity import checkpoint_identity, real_vocabulary, tokenizer_hash
from draftwire.errors import ConfigurationError
from draftwire.rows.states import projection_digest
from draftwire.wire.identity import IdMap
from draftwire.wire.registry import Adaptation, HiddenDtype
from draftwire.wire.states import StateFormat


@dataclass(slots=True)
class Block:
    """The rows of a proposal, computed once; ``row`` is the one that the next draft is drawn from.

    hidden: (block_size, d). logits: binary32 (block_size, V), before the Markov bias. state: of the
    Markov head, (rank,).
    """

    hidden: Tensor
    logits: Tensor
    state: Tensor | None
    row: int


class BlockContext:
    """One session: its tokens, the keys of the target's states, and the block that is drawn."""

    def __init__(self, drafter: BlockDrafter) -> None:
        """Begin with nothing."""
        self.tokens: list[int] = []
        self.states = StateKeys(drafter)
        self.block: Block | None = None

    @property
    def length(self) -> int:
        """Tokens that it holds."""
        return len(self.tokens)


class BlockDraftEngine:
    """Implements ``DraftEngine`` and ``ReadsStates`` for DSpark and DFlash drafters.

    The first ``forward`` behind a ``truncate`` gets committed tokens and computes the rows of the
    whole block; each one after it gets the draft that was drawn, and returns the next row with the
    bias of that draft. Sessions are computed one after another, so a row has the same bits in any
    batch. Columns beyond the tokenizer's vocabulary are cut off.
    """

    adaptation = Adaptation.NATIVE

    def __init__(
        self, drafter: BlockDrafter, tokenizer: Any, *, identity: bytes, device: str = "cpu"
    ) -> None:
        """Take a drafter in eval mode, with the tokenizer of its target."""
        shape = drafter.shape
        self._drafter = drafter
        self._device = torch.device(device)
        self._open: set[BlockContext] = set()
        self.vocab_size = real_vocabulary(tokenizer, shape.vocab_size)
        self.max_context = shape.max_context
        self.max_depth = shape.drafts
        self.identity = identity
        self.tokenizer_hash = tokenizer_hash(tokenizer)
        self.id_map_hash = IdMap.native(self.vocab_size).hash()
        dtype = HiddenDtype.FLOAT32 if device == "cpu" else HiddenDtype.BFLOAT16
        self.state_format: Final = StateFormat(shape.target_layers, shape.target_width, dtype)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        tokenizer: Any,
        *,
        target: str | Path | None = None,
        device: str = "cpu",
    ) -> BlockDraftEngine:
        """Load a checkpoint; target: the folder of its target, for what it leaves there."""
        drafter = read_block_drafter(folder, target=target, device=device)
        return cls(drafter, tokenizer, identity=checkpoint_identity(folder), device=device)

    @property
    def open_sessions(self) -> int:
        """Contexts that are open now."""
        return len(self._open)

    def open(self) -> BlockContext:
        """Return a new context that holds no tokens."""
        context = BlockContext(self._drafter)
        self._open.add(context)
        return context

    def close(self, context: BlockContext) -> None:
        """Free what the context holds; it is not used again."""
        self.truncate(context, 0)
        self._open.discard(context)

    def context_bytes(self, context: BlockContext) -> int:
        """Return the bytes of the states' keys and values."""
        return context.states.bytes

    def truncate(self, context: BlockContext, length: int) -> None:
        """Keep the first ``length`` tokens, and the states of those before them."""
        del context.tokens[length:]
        context.states.truncate(length)
        context.block = None

    @torch.inference_mode()
    def forward(self, batch: Sequence[tuple[BlockContext, Sequence[int]]]) -> Tensor:
        """Feed tokens to each context and return the logits after the last one, binary32 (B, V)."""
        return torch.stack([self._row(context, tokens) for context, tokens in batch])

    @torch.inference_mode()
    def fuse(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Project raw rows (R, n x d) to fused ones (R, d)."""
        fused: NDArray[np.float32] = self._drafter.fuse(self._tensor(rows)).float().cpu().numpy()
        return fused

    @cached_property
    def projection_digest(self) -> bytes:
        """SHA-256 of the projection and its norm; empty where it changes a state's width."""
        shape = self._drafter.shape
        if shape.hidden_size != shape.target_width:
            return b""
        weights = self._drafter.fc.weight, self._drafter.hidden_norm.weight
        weight, scale = (each.detach().float().cpu().numpy() for each in weights)
        return projection_digest(weight, scale)

    @torch.inference_mode()
    def take_states(self, context: BlockContext, first: int, rows: NDArray[np.float32]) -> None:
        """Read the states of committed tokens from position ``first`` on, raw or fused."""
        given = self._tensor(rows)
        raw = given.shape[1] == self.state_format.elements
        context.states.add(first, self._drafter.fuse(given) if raw else given)

    def states_held(self, context: BlockContext) -> int:
        """Return n: the states of the first n positions are held, without a gap."""
        return context.states.held

    def _tensor(self, rows: NDArray[np.float32]) -> Tensor:
        weight = self._drafter.fc.weight
        return torch.from_numpy(np.ascontiguousarray(rows)).to(weight.device, weight.dtype)

    def _row(self, context: BlockContext, tokens: Sequence[int]) -> Tensor:
        context.tokens.extend(tokens)
        block = context.block
        if block is None:
            block = context.block = self._block(context)
        else:
            block.row += len(tokens)
        if block.row >= self._drafter.shape.block_size:
            raise ConfigurationError(f"a block holds {self.max_depth} drafts and no more")
        logits = block.logits[block.row]
        head = self._drafter.markov_head
        if head is not None:
            assert block.state is not None
            before = torch.tensor(context.tokens[-1], device=logits.device)
            bias, block.state = head(block.state, before, block.hidden[block.row])
            logits = logits + bias.float()
        return logits[: self.vocab_size]

    def _block(self, context: BlockContext) -> Block:
        anchor = len(context.tokens) - 1
        device = self._drafter.fc.weight.device
        hidden = self._drafter.block(
            torch.tensor([[context.tokens[-1]]], device=device),
            torch.tensor([[anchor]], device=device),
            context.states.before(anchor),
        )[0]
        head = self._drafter.markov_head
        state = None if head is None else head.first_state(hidden[0])
        logits = self._drafter.base_logits(hidden)
        return Block(hidden, logits, state, int(not self._drafter.shape.anchor_predicts))
