"""The two architectures, growth in depth, and export to a transformers folder."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from .vocabulary import BEGIN_ID, CONTEXT_LIMIT, END_ID, PAD_ID, VOCABULARY_SIZE, save_tokenizer

WIDTH = 192
INNER_WIDTH = 384
HEADS = 3
SHALLOW_LAYERS = 4
TARGET_LAYERS = 24
DRAFTER_LAYERS = 1


def configuration(layers: int) -> LlamaConfig:
    """The Llama configuration all models here share, ``layers`` deep, with tied embeddings."""
    return LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=WIDTH,
        intermediate_size=INNER_WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT_LIMIT,
        tie_word_embeddings=True,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )


def new_model(layers: int) -> LlamaForCausalLM:
    """A float32 model with fresh weights from torch's global generator."""
    return LlamaForCausalLM(configuration(layers)).float()


def silence_block(block: Any) -> None:
    """Zero the two output projections of a block, which makes it the identity."""
    torch.nn.init.zeros_(block.self_attn.o_proj.weight)
    torch.nn.init.zeros_(block.mlp.down_proj.weight)


def is_added(index: int) -> bool:
    """Whether the target's block ``index`` was added by ``deepen`` and not trained shallow."""
    return index % (TARGET_LAYERS // SHALLOW_LAYERS) != 0


def deepen(shallow: LlamaForCausalLM) -> LlamaForCausalLM:
    """Grow the shallow model to the target's depth without changing its function.

    Every trained block is followed by copies of itself whose output projections are zero
    (Net2DeeperNet, Chen et al. 2015, arXiv:1511.05641; stacking of trained blocks, Gong et al.
    2019), so that the new blocks start as the identity with features already learnt.
    """
    deep = new_model(TARGET_LAYERS)
    copies = TARGET_LAYERS // SHALLOW_LAYERS
    deep.model.embed_tokens.load_state_dict(shallow.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(shallow.model.norm.state_dict())
    for index, block in enumerate(deep.model.layers):
        block.load_state_dict(shallow.model.layers[index // copies].state_dict())
        if is_added(index):
            silence_block(block)
    return deep


def load_shallow(folder: Path) -> LlamaForCausalLM:
    """The shallow model inside an exported target whose added blocks are still the identity."""
    deep = LlamaForCausalLM.from_pretrained(folder).float()
    shallow = new_model(SHALLOW_LAYERS)
    shallow.model.embed_tokens.load_state_dict(deep.model.embed_tokens.state_dict())
    shallow.model.norm.load_state_dict(deep.model.norm.state_dict())
    trained = [block for index, block in enumerate(deep.model.layers) if not is_added(index)]
    for block, source in zip(shallow.model.layers, trained, strict=True):
        block.load_state_dict(source.state_dict())
    return shallow


def without_added_blocks(deep: LlamaForCausalLM) -> LlamaForCausalLM:
    """A copy of the target in which every added block is the identity again."""
    stripped = copy.deepcopy(deep)
    for index, block in enumerate(stripped.model.layers):
        if is_added(index):
            silence_block(block)
    return stripped


def new_drafter(source: LlamaForCausalLM) -> LlamaForCausalLM:
    """A one-layer model with the embeddings, first block and final norm of ``source``."""
    drafter = new_model(DRAFTER_LAYERS)
    drafter.model.embed_tokens.load_state_dict(source.model.embed_tokens.state_dict())
    drafter.model.norm.load_state_dict(source.model.norm.state_dict())
    drafter.model.layers[0].load_state_dict(source.model.layers[0].state_dict())
    return drafter


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights (float16), configuration, generation settings and tokenizer to ``folder``.

    The configuration says float32: the weights are stored in half the space but computed with in
    single precision, which CPUs without half-precision arithmetic need to be fast.
    """
    folder.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(model).half()
    half.generation_config = GenerationConfig(
        bos_token_id=BEGIN_ID, eos_token_id=END_ID, pad_token_id=PAD_ID, do_sample=True
    )
    half.save_pretrained(folder)
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["dtype"] = "float32"
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_tokenizer(tokenizer, folder)
