"""A byte-level BPE tokenizer trained on the corpus, saved as a transformers tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 3072
CONTEXT_LIMIT = 1024
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
BEGIN_ID, END_ID, PAD_ID = 0, 1, 2


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """Learn the merges; the three special tokens take ids 0, 1 and 2, bytes never go unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, BEGIN_ID)]
    )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    """One int64 stream: begin, the document's tokens, end, for every document in turn."""
    parts: list[np.ndarray] = []
    for start in range(0, len(documents), 1024):
        for encoding in tokenizer.encode_batch(documents[start : start + 1024]):
            parts.append(np.asarray([*encoding.ids, END_ID], dtype=np.int64))
    return np.concatenate(parts)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json so that AutoTokenizer loads them offline."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT_LIMIT,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)
    # The class name that transformers 4 and 5 both know.
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
