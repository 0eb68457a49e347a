"""Where a text ends: end tokens, stop strings, the token limit and the context's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from draftwire.errors import ConfigurationError
from draftwire.text.detokenizer import Decode
from draftwire.text.streamed import StreamedText

Ends = Callable[[Sequence[int]], bool]


class Finish(Enum):
    """Why a text ended."""

    END_TOKEN = "end_token"
    STOP_STRING = "stop_string"
    RULE = "rule"  # one of the caller's own
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    ABANDONED = "abandoned"


@dataclass(slots=True)
class StopRules:
    """Judges the tokens of one text one by one, in order.

    end_tokens: ids that end the text. stop: strings that end it; they need ``decode``, ids to text.
    prompt: what the text stands behind. max_tokens: most tokens of the text. room: tokens that the
    target's context still takes. ends: a rule of the caller's own, asked once a token with all
    tokens of the text so far. piece: the text that has become certain with the last token; "" where
    there is no ``decode``. Raises ConfigurationError when there are stop strings and no ``decode``.
    """

    end_tokens: frozenset[int]
    max_tokens: int
    room: int
    stop: tuple[str, ...] = ()
    decode: Decode | None = None
    ends: Ends | None = None
    prompt: Sequence[int] = ()
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    piece: str = ""
    _text: StreamedText | None = None

    def __post_init__(self) -> None:
        """Refuse stop strings that could never be found."""
        if self.stop and self.decode is None:
            raise ConfigurationError("stop strings are looked for in the text: pass decode")
        if self.decode is not None:
            self._text = StreamedText(self.decode, self.prompt, self.stop)

    @property
    def left(self) -> int:
        """Tokens that the text may still take."""
        return min(self.max_tokens, self.room) - len(self.tokens)

    @property
    def text(self) -> str:
        """The text so far, before the first stop string; "" where there is no ``decode``."""
        return "" if self._text is None else self._text.text

    def add(self, token: int) -> Finish | None:
        """Take the next token of the text; return why the text ends with it, or None."""
        self.tokens.append(token)
        stopped = self._text is not None and self._text.add(token)
        if token in self.end_tokens:
            self.finish = Finish.END_TOKEN
        elif stopped:
            self.finish = Finish.STOP_STRING
        elif self.ends is not None and self.ends(self.tokens):
            self.finish = Finish.RULE
        elif self.left <= 0:
            at_limit = len(self.tokens) >= self.max_tokens
            self.finish = Finish.MAX_TOKENS if at_limit else Finish.CONTEXT
        if self._text is not None:
            self.piece = self._text.take(last=self.finish is not None)
        return self.finish
