"""Ids to text by a tokenizer, and what has to be known of its tokens to do that in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

Decode = Callable[[Sequence[int]], str]

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
_BYTES: Final = 256


class Detokenizer:
    """A function from ids to text that answers for single tokens as well; it keeps what it knows.

    tokenizer: as transformers has them: ``decode`` with ``skip_special_tokens``, and
    ``convert_ids_to_tokens``. special: whether special tokens are part of the text. Spaces are not
    cleaned up: the text is what the model wrote.
    """

    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._alone: dict[int, str] = {}
        self._skipped: dict[int, bool] = {}
        self._run_bytes: frozenset[int] | None = None

    def __call__(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self._text(ids, special=self._special)

    def alone(self, token: int) -> str:
        """Return the text that a token has by itself."""
        if token not in self._alone:
            self._alone[token] = self([token])
        return self._alone[token]

    def skipped(self, token: int) -> bool:
        """Whether the text leaves this token out: a special one, or an id that has none."""
        if token not in self._skipped:
            special = not self._special and bool(self._text([token], special=True))
            unknown = self._tokenizer.convert_ids_to_tokens(token) is None
            self._skipped[token] = not self.alone(token) and (special or unknown)
        return self._skipped[token]

    def in_run(self, token: int) -> bool:
        """Whether this is a byte whose text depends on the whole run of bytes that it stands in.

        ByteFallback of the library tokenizers makes characters of a run of ``<0xHH>`` if all of it
        is UTF-8, and otherwise one U+FFFD of each byte.
        """
        if self._run_bytes is None:
            self._run_bytes = self._find_run_bytes()
        return token in self._run_bytes

    def with_special(self) -> Detokenizer:
        """Return one whose text holds the special tokens."""
        return Detokenizer(self._tokenizer, special=True)

    def special_texts(self) -> tuple[str, ...]:
        """Return the special tokens as they stand in a text that holds them."""
        added = getattr(self._tokenizer, "added_tokens_decoder", {}).values()
        texts = {str(token) for token in added if getattr(token, "special", False)}
        texts.update(map(str, getattr(self._tokenizer, "all_special_tokens", ())))
        return tuple(sorted(filter(None, texts)))

    def _text(self, ids: Sequence[int], *, special: bool) -> str:
        if not ids:
            return ""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        return text

    def _find_run_bytes(self) -> frozenset[int]:
        tokenizer = self._tokenizer
        known: dict[int, int] = {}  # byte: its id
        for byte in range(_BYTES):
            for name in {f"<0x{byte:02X}>", f"<0x{byte:02x}>"}:
                token = tokenizer.convert_tokens_to_ids(name)
                if token is not None and tokenizer.convert_ids_to_tokens(token) == name:
                    known[byte] = int(token)
        high = [token for byte, token in known.items() if byte >= 0x80]
        low = [token for byte, token in known.items() if byte < 0x80]
        if not high or self([high[0]]) != REPLACEMENT:
            return frozenset()
        if low and self([low[-1], high[0]]) != 2 * REPLACEMENT:
            return frozenset()  # bytes stand for themselves, as in a byte-level vocabulary
        return frozenset(known.values())


class PlainDetokenizer(Detokenizer):
    """A function from ids to text of which nothing else is known."""

    def __init__(self, decode: Decode) -> None:
        super().__init__(None)
        self._decode = decode

    def skipped(self, token: int) -> bool:
        """No token is known to be left out."""
        return False

    def in_run(self, token: int) -> bool:
        """No token is known to be such a byte."""
        return False

    def with_special(self) -> Detokenizer:
        """Return itself."""
        return self

    def special_texts(self) -> tuple[str, ...]:
        """None is known."""
        return ()

    def _text(self, ids: Sequence[int], *, special: bool) -> str:
        return self._decode(ids) if ids else ""


def detokenizer(decode: Decode) -> Detokenizer:
    """Return ``decode`` as a Detokenizer, which it may be."""
    return decode if isinstance(decode, Detokenizer) else PlainDetokenizer(decode)
