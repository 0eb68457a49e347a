"""The backbone of a block drafter: all rows of a proposal in one pass (DSpark, DFlash).

A block is the last committed token, the anchor, and mask tokens behind it. Its rows attend to one
another, in both directions, and to the target's states of the tokens before the anchor, whose keys
and values the same projections make. Tensor names are those of DeepSpec's checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from draftwire.engines.dspark.heads import ConfidenceHead, MarkovHead
from draftwire.engines.dspark.shape import DraftShape, MarkovKind

Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of positions, (N, rows, head_dim) each."""
Keys: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values of rows in one layer, (N, kv_heads, rows, head_dim) each."""


class BlockAttention(nn.Module):
    """Attention of the rows of blocks, to states of the target and to one another."""

    def __init__(self, config: Qwen3Config) -> None:
        """Make the projections of a layer."""
        super().__init__()
        width, bias = config.hidden_size, config.attention_bias
        self.head_dim: int = config.head_dim
        queries, keys = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(width, queries * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, keys * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, keys * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(queries * self.head_dim, width, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self._grouped = queries != keys

    def keys(self, rows: Tensor, rotation: Rotation) -> Keys:
        """Keys and values of rows (N, rows, d), of states and of blocks alike."""
        heads = (*rows.shape[:-1], self.k_proj.out_features // self.head_dim, self.head_dim)
        keys = self.k_norm(self.k_proj(rows).view(heads)).transpose(1, 2)
        values = self.v_proj(rows).view(heads).transpose(1, 2)
        _, keys = apply_rotary_pos_emb(keys, keys, *rotation)
        return keys, values

    def forward(
        self, rows: Tensor, rotation: Rotation, states: Keys, mask: Tensor | None
    ) -> Tensor:
        """Rows (N, Q, d) of blocks behind ``states``; mask: bool (N or 1, 1, Q, S + Q), or all."""
        own = self.keys(rows, rotation)
        keys, values = (torch.cat(each, 2) for each in zip(states, own, strict=True))
        queries = self.q_norm(self.q_proj(rows).view(*rows.shape[:-1], -1, self.head_dim))
        queries = queries.transpose(1, 2)
        queries, _ = apply_rotary_pos_emb(queries, queries, *rotation)
        seen = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=self._grouped
        )
        mixed: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return mixed


class BlockLayer(nn.Module):
    """One layer: attention and MLP, each behind a norm and added to what came in."""

    def __init__(self, config: Qwen3Config) -> None:
        """Make a layer."""
        super().__init__()
        self.self_attn = BlockAttention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, rows: Tensor, rotation: Rotation, states: Keys, mask: Tensor | None
    ) -> Tensor:
        """See :class:`BlockAttention`."""
        rows = rows + self.self_attn(self.input_layernorm(rows), rotation, states, mask)
        done: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return done


class BlockDrafter(nn.Module):
    """Backbone and heads of a block drafter."""

    def __init__(self, shape: DraftShape) -> None:
        """Make a drafter of a shape, its weights not yet read."""
        super().__init__()
        config = Qwen3Config(**shape.config)
        width = shape.hidden_size
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, width)
        self.fc = nn.Linear(len(shape.target_layers) * shape.target_width, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(width, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(width, shape.vocab_size, bias=False)
        self.markov_head = MarkovHead(shape) if shape.markov_kind is not MarkovKind.NONE else None
        self.confidence_head = ConfidenceHead(shape) if shape.confidence else None
        self.rotary_emb = Qwen3RotaryEmbedding(config)

    def fuse(self, states: Tensor) -> Tensor:
        """States of the target, layer beside layer (..., n x d'), to one row (..., d) each."""
        fused: Tensor = self.hidden_norm(self.fc(states))
        return fused

    def state_keys(self, fused: Tensor, positions: Tensor) -> list[Keys]:
        """Keys and values of fused rows (N, S, d) at positions int64 (N, S), a layer each."""
        rotation = self.rotary_emb(fused, positions)
        layers = cast(Iterable[BlockLayer], self.layers)
        return [layer.self_attn.keys(fused, rotation) for layer in layers]

    def block(
        self,
        anchors: Tensor,
        positions: Tensor,
        states: Sequence[Keys],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden rows (N, blocks x block_size, d) of blocks.

        anchors: int64 (N, blocks), last committed tokens. positions: int64 (N, blocks), theirs.
        states: of ``state_keys``. mask: which of states and rows each row attends to, bool (N or 1,
        1, rows, S + rows); None = all, for one block behind its own states.
        """
        size = self.shape.block_size
        tokens = anchors[..., None].repeat(1, 1, size)
        tokens[..., 1:] = self.shape.mask_token
        places = positions[..., None] + torch.arange(size, device=positions.device)
        rows = self.embed_tokens(tokens.flatten(1))
        rotation = self.rotary_emb(rows, places.flatten(1))
        for layer, keys in zip(self.layers, states, strict=True):
            rows = layer(rows, rotation, keys, mask)
        normed: Tensor = self.norm(rows)
        return normed

    def base_logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden rows (..., d) before any bias, binary32 (..., V)."""
        logits: Tensor = self.lm_head(hidden).float()
        return logits
