"""Where a text ends: end tokens, stop strings, the token limit and the context's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from draftwire.errors import ConfigurationError

Decode = Callable[[Sequence[int]], str]
Ends = Callable[[Sequence[int]], bool]

TAIL_SLACK = 8  # characters at the head of a tail that may differ from the whole text's


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
    max_tokens: most tokens of the text. room: tokens that the target's context still takes. ends: a
    rule of the caller's own, asked once a token with all tokens of the text so far. Raises
    ConfigurationError when there are stop strings and no ``decode``.
    """

    end_tokens: frozenset[int]
    max_tokens: int
    room: int
    stop: tuple[str, ...] = ()
    decode: Decode | None = None
    ends: Ends | None = None
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def __post_init__(self) -> None:
        """Refuse stop strings that could never be found."""
        if self.stop and self.decode is None:
            raise ConfigurationError("stop strings are looked for in the text: pass decode")

    @property
    def left(self) -> int:
        """Tokens that the text may still take."""
        return min(self.max_tokens, self.room) - len(self.tokens)

    def add(self, token: int) -> Finish | None:
        """Take the next token of the text; return why the text ends with it, or None."""
        self.tokens.append(token)
        if token in self.end_tokens:
            self.finish = Finish.END_TOKEN
        elif self.stop and self._ends_with_stop_string():
            self.finish = Finish.STOP_STRING
        elif self.ends is not None and self.ends(self.tokens):
            self.finish = Finish.RULE
        elif self.left <= 0:
            at_limit = len(self.tokens) >= self.max_tokens
            self.finish = Finish.MAX_TOKENS if at_limit else Finish.CONTEXT
        return self.finish

    def _ends_with_stop_string(self) -> bool:
        # Every earlier token was judged, so a new match touches the last token. A tail of tokens
        # whose text is long enough holds it; the tail is doubled until it is, because tokens may be
        # empty or part of a character, whose first pieces decode to something else in a tail.
        assert self.decode is not None
        longest = max(map(len, self.stop))
        last = len(self.decode(self.tokens[-1:]))
        count = 1
        while True:
            count = min(2 * count, len(self.tokens))
            text = self.decode(self.tokens[-count:])
            if len(text) >= longest + last + TAIL_SLACK or count == len(self.tokens):
                return any(string in text for string in self.stop)


def cut(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first stop string found in it."""
    found = [at for at in (text.find(string) for string in stop) if at >= 0]
    return text[: min(found)] if found else text
