"""Tiny random models and tokenizers for the tests of the transformers engines."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

torch.set_num_threads(1)

END = 1  # the end token of every tiny model


def tiny_tokenizer(vocab_size: int, *, rename: int | None = None) -> PreTrainedTokenizerFast:
    """One word a token, ``w0 w1 ...``; ``rename`` gives that id another word."""
    words = {("other" if index == rename else f"w{index}"): index for index in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1")


def _shape(vocab_size: int, layers: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "initializer_range": 0.6,  # far from uniform, and every token depends on those before it
        "bos_token_id": 0,
        "eos_token_id": END,
        "pad_token_id": 0,
    }


@functools.cache
def tiny_llama(
    vocab_size: int, *, layers: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Any:
    """A seeded random LlamaForCausalLM.

    In binary64 a pass over many tokens and passes over one give nearly the same binary32 logits, so
    that what is compared is the processing and not the rounding.
    """
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**_shape(vocab_size, layers))).eval().to(dtype)


@functools.cache
def tiny_sliding(vocab_size: int, window: int) -> Any:
    """A seeded random MistralForCausalLM whose layers see ``window`` tokens."""
    torch.manual_seed(1)
    config = MistralConfig(sliding_window=window, **_shape(vocab_size, 2))
    return MistralForCausalLM(config).eval().double()


def save(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Write a model folder as a user would have it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def fresh_logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    """The logits after every prefix of ``ids``, without any cache: float32 (n, width)."""
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    logits: np.ndarray = output.logits[0].float().numpy()
    return logits


@contextmanager
def drawing(tokens: Sequence[int]) -> Iterator[None]:
    """Make torch.multinomial return ``tokens`` one after another, whatever the probabilities."""
    original, left = torch.multinomial, list(tokens)

    def forced(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        return torch.full((probabilities.shape[0], num_samples), left.pop(0))

    torch.multinomial = forced  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.multinomial = original


def stepwise(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], arguments: dict[str, Any]
) -> np.ndarray:
    """p as ``model.generate`` computes it step by step while it is made to draw ``tokens``.

    Returns binary64 (len(tokens), width), each row the softmax of generate's own scores.
    """
    ids = torch.tensor([list(prompt)])
    with drawing(tokens):
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            return_dict_in_generate=True,
            output_scores=True,
            **arguments,
        )
    assert output.sequences[0].tolist() == [*prompt, *tokens]
    return torch.stack([scores[0].double().softmax(-1) for scores in output.scores]).numpy()


def weights(scores: torch.Tensor) -> np.ndarray:
    """exp(score - max) of each row of processed scores, in binary64."""
    wide = scores.double().numpy()
    made: np.ndarray = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return made


def normalised(scores: torch.Tensor) -> np.ndarray:
    """Processed scores as probabilities, in binary64."""
    rows = weights(scores)
    probabilities: np.ndarray = rows / rows.sum(axis=-1, keepdims=True)
    return probabilities
