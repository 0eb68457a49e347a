"""Tiny Llama models that vLLM's CPU backend can run, as folders a user would have."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)

WORDS = ("<s>", "</s>", '{"a":', "true", "false", "}", "w6", "w7")
"""The vocabulary of every tiny model: eight words, of which a text can be JSON."""
END = 1  # the end token
CONTEXT = 128


def tiny_folder(folder: Path, *, seed: int, layers: int = 1, sharpness: float = 0.2) -> Path:
    """Write a seeded random model of WORDS; any two of them speak the same ids."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        initializer_range=sharpness,  # far from uniform, and every token depends on those before it
        bos_token_id=0,
        eos_token_id=END,
        pad_token_id=0,
        tie_word_embeddings=False,
        dtype="float32",
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    words = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=WORDS[0], eos_token=WORDS[1], bos_token=WORDS[0]
    ).save_pretrained(folder)
    return folder
