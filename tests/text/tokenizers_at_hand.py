"""One small tokenizer of each kind, made here, with everything that makes decoding hard."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS: Final = ["Hello", "world", "!", ".", ",", "n", "'", "t", "a", "b", "ab", "é", "€", "\n", "�"]
BYTES: Final = [f"<0x{byte:02X}>" for byte in range(256)]
_PRINTED: Final = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_NAMES: Final = {byte: chr(byte) for byte in _PRINTED} | {
    byte: chr(256 + index)
    for index, byte in enumerate(byte for byte in range(256) if byte not in _PRINTED)
}
"""How byte-level vocabularies write each byte."""
SPECIAL: Final = ("<s>", "</s>", "<|im_end|>")


def byte_level() -> Tokenizer:
    """Byte-level BPE: every byte, and tokens that end or begin inside a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Hello", "Ġworld", "Ġ", "!", "ab", "Ċ", "�".encode().decode("latin-1")]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in ("😀", "€", "é", " é", "a😀", "你好"):
        ((piece, _),) = level.pre_tokenize_str(text)
        words += [piece[:size] for size in range(1, len(piece) + 1)]
        words += [piece[start:] for start in range(1, len(piece))]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys([*alphabet, *words]))}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _metaspace_vocab(*, byte_fallback: bool) -> list[str]:
    pieces = ["<unk>", *WORDS, *("▁" + word for word in WORDS), "▁", "▁▁", "▁▁▁"]
    return [*pieces, *BYTES] if byte_fallback else pieces


def llama() -> Tokenizer:
    """SentencePiece-like BPE with byte fallback, decoded by a chain that strips one space."""
    pieces = _metaspace_vocab(byte_fallback=True)
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def gemma() -> Tokenizer:
    """The same without the strip."""
    tokenizer = llama()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def bytes_alone() -> Tokenizer:
    """A first-space strip behind byte fallback, and no other pieces than bytes and a space."""
    vocab = {piece: index for index, piece in enumerate(["<unk>", "▁", "▁a", *BYTES])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = llama().decoder
    return tokenizer


def metaspace() -> Tokenizer:
    """Unigram with Metaspace, which drops the first space."""
    pieces = _metaspace_vocab(byte_fallback=False)
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def unigram_bytes() -> Tokenizer:
    """Unigram whose bytes fall back, and then Metaspace."""
    pieces = _metaspace_vocab(byte_fallback=True)
    tokenizer = Tokenizer(models.Unigram([(p, -1.0) for p in pieces], 0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def wordpiece(*, cleanup: bool) -> Tokenizer:
    """WordPiece with continuations."""
    pieces = ["[UNK]", *WORDS, *("##" + word for word in WORDS), "##", "n't", "'s"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    return tokenizer


def suffixes() -> Tokenizer:
    """BPE whose words end in a mark, as in CLIP and the first GPT; the last loses its space."""
    pieces = ["<unk>", *WORDS, *(word + "</w>" for word in WORDS), "</w>"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


KINDS: Final[dict[str, Callable[[], Tokenizer]]] = {
    "byte_level": byte_level,
    "llama": llama,
    "gemma": gemma,
    "bytes_alone": bytes_alone,
    "metaspace": metaspace,
    "unigram_bytes": unigram_bytes,
    "wordpiece": functools.partial(wordpiece, cleanup=False),
    "wordpiece_cleanup": functools.partial(wordpiece, cleanup=True),
    "suffixes": suffixes,
}


@functools.cache
def made(kind: str) -> Any:
    """A tokenizer of this kind, as transformers has it, with special tokens and one added token."""
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=True,  # which no text of ours is
    )
