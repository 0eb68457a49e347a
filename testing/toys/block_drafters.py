"""Tiny block drafters whose weights follow from their names, for files of expected logits."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)  # the last one is the anchor
DRAFTS = (7, 8, 9, 10)  # behind it, as they are fed
SHAPE: dict[str, Any] = {
    "attention_bias": False,
    "block_size": 5,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "mask_token_id": 28,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 29,
}
DEEPSPEC: dict[str, Any] = {
    **SHAPE,
    "architectures": ["Qwen3DSparkModel"],
    "confidence_head_with_markov": True,
    "enable_confidence_head": True,
    "layer_types": ["full_attention"] * 2,
    "markov_head_type": "vanilla",
    "markov_rank": 6,
    "num_anchors": 4,
    "num_target_layers": 4,
    "target_layer_ids": [0, 2],
}


def values_of(name: str, shape: Sequence[int], scale: float = 0.4) -> NDArray[np.float32]:
    """Numbers that follow from a name: the same ones wherever they are made."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (scale * rng.standard_normal(tuple(shape))).astype(np.float32)


def states_of(width: int, layers: int = 2) -> NDArray[np.float32]:
    """States of the target for TOKENS, layer beside layer."""
    return values_of("states", (len(TOKENS), layers * width), 1.0)


def write_folder(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> Path:
    """Write a checkpoint whose tensors are ``values_of`` their names; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: torch.from_numpy(values_of(name, shape)) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder
