"""The text of ids that come one by one, in a bounded amount of decoding for each.

The text of a token depends on its neighbours: a character may be spread over tokens, a run of
bytes is characters or none, a first space is dropped, a continuation joins the word before it. So
a few tokens before the new ones are decoded with them, and their own text is taken off. Whatever
the tokenizer, the certain text and the tail behind it are together the decode of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from draftwire.text.detokenizer import REPLACEMENT, Decode, Detokenizer, detokenizer

LONGEST_CHARACTER: Final = 4  # bytes of UTF-8
MOST_WAITING: Final = 32  # tokens without a text of their own that are decoded again


class TextDecoder:
    """Takes one token after another; the text so far is all that was returned, and ``tail``.

    context: tokens before the text, whose text is not part of it: the prompt. Only its end is
    looked at. tail: the end of the text that a later token may change.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode: Detokenizer = detokenizer(decode)
        self._context: list[int] = self._end_of(context)
        self._head = self._decode(self._context)
        self._skip: int | None = None  # of the head; None: what it has in common with the whole
        self._new: list[int] = []
        self._given = 0  # characters of the new tokens' text that were returned
        self._run: _ByteRun | None = None
        self._tail = ""

    @property
    def tail(self) -> str:
        """The end of the text that is not certain yet."""
        return self._tail if self._run is None else self._run.text

    def add(self, token: int) -> str:
        """Take the next token and return the text that has become certain with it."""
        if self._decode.skipped(token):
            return ""
        if self._decode.in_run(token):
            before = "" if self._run is not None else self._begin_run()
            assert self._run is not None
            self._run.add(token)
            return before
        before = self._end_run()
        self._new.append(token)
        whole = self._decode([*self._context, *self._new])
        skip = _common(self._head, whole) if self._skip is None else self._skip
        text = whole[skip:]
        # The last character may still lack some of its bytes.
        unfinished = whole.endswith(REPLACEMENT)
        self._tail = REPLACEMENT if unfinished and text else ""
        end = len(text) - len(self._tail)
        certain, self._given = text[self._given : end], max(self._given, end)
        if not unfinished:
            self._advance(token)
        elif text:
            self._advance_unfinished()
        return before + certain

    def _advance(self, token: int) -> None:
        """Let the last token be the context of the next."""
        if self._decode.alone(token):
            self._restart([token])
        elif len(self._new) >= MOST_WAITING:
            self._restart([*self._context[:1], token])

    def _advance_unfinished(self) -> None:
        """Let the tokens in which the last character begins be the context of the next."""
        recent = [*self._context, *self._new][-LONGEST_CHARACTER:]
        # Each has a byte of its own: then the first byte of the character is among them.
        enough = len(recent) == LONGEST_CHARACTER and all(map(self._decode.alone, recent))
        if enough or len(self._new) >= MOST_WAITING:
            self._restart(recent, unfinished=True)

    def _restart(self, context: list[int], *, unfinished: bool = False) -> None:
        self._context, self._head = context, self._decode(context)
        self._skip = len(self._head) - (unfinished and self._head.endswith(REPLACEMENT))
        self._new, self._given = [], 0

    def _begin_run(self) -> str:
        """Begin a run of bytes; what stands before it is certain."""
        before, self._tail = self._tail, ""
        self._run = _ByteRun(self._decode, [*self._context, *self._new])
        return before

    def _end_run(self) -> str:
        """End a run of bytes, if there is one, and return its text."""
        if self._run is None:
            return ""
        text = self._run.text
        self._restart([self._run.last])
        self._run = None
        return text

    def _end_of(self, context: Sequence[int]) -> list[int]:
        """Return the end of a context that holds at least one character, and no bytes behind it."""
        kept: list[int] = []
        for token in reversed(context):
            if self._decode.skipped(token) or (not kept and self._decode.in_run(token)):
                continue
            kept.append(token)
            if not self._decode.in_run(token) and self._decode.alone(token).strip(REPLACEMENT):
                break
        return kept[::-1]


class _ByteRun:
    """A run of bytes that are characters if all of them are, and otherwise U+FFFD each."""

    def __init__(self, decode: Detokenizer, context: list[int]) -> None:
        self._decode = decode
        self._context, self._head = context, decode(context)
        self._inside = 0  # bytes of the run that stand in the context
        self._characters: list[str] = []
        self._waiting: list[int] = []  # bytes that are no whole character yet
        self._broken = False
        self._size = 0
        self.last = -1

    @property
    def text(self) -> str:
        """The text of the run, were it to end here."""
        if self._waiting or self._broken:
            return REPLACEMENT * self._size
        return "".join(self._characters)

    def add(self, token: int) -> None:
        """Take the next byte."""
        self.last = token
        self._size += 1
        if self._broken:
            return
        self._waiting.append(token)
        whole = self._decode([*self._context, *self._waiting])
        head = REPLACEMENT * self._inside or self._head
        if whole == head + REPLACEMENT * len(self._waiting):
            self._broken = len(self._waiting) >= LONGEST_CHARACTER
            return
        self._characters.append(whole[len(self._head) :])
        if self._inside or not self._head:  # no text before the run whose place a byte could keep
            if self._head:
                self._context, self._inside = [], 0
            self._context = [*self._context, *self._waiting]
            self._inside += len(self._waiting)
            self._head = self._decode(self._context)
        self._waiting = []


def _common(one: str, other: str) -> int:
    """Return how many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
