"""The text of one request as it is shown: certain, before the first stop string, special-free."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwire.text.decoder import TextDecoder
from draftwire.text.detokenizer import Decode, detokenizer


class StreamedText:
    """Takes one token after another, finds stop strings and gives out what is certain.

    decode: ids to text, a Detokenizer or any function. context: the prompt. stop: strings before
    whose first the text ends. One that holds a special token is looked for in the text with special
    tokens, the others in the text as it is shown.
    """

    def __init__(
        self, decode: Decode, context: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        known = detokenizer(decode)
        names = known.special_texts() if stop else ()
        special = tuple(text for text in stop if any(name in text for name in names))
        self._shown = _Searched(
            TextDecoder(known, context), tuple(text for text in stop if text not in special)
        )
        self._special: _Searched | None = None
        if special:
            self._special = _Searched(TextDecoder(known.with_special(), context), special)
        self._places = _Places()
        self._given: list[str] = []
        self._held = ""  # certain, and not given out yet
        self._end: int | None = None  # where a stop string begins
        self._finished = False  # all of it has been given out

    @property
    def ended(self) -> bool:
        """Whether a stop string was found."""
        return self._end is not None

    @property
    def text(self) -> str:
        """The whole text so far, before the first stop string."""
        given = "".join(self._given)
        whole = given if self._finished else given + self._held + self._shown.decoder.tail
        return whole[: self._end]

    def add(self, token: int) -> bool:
        """Take the next token; return whether the text now holds a stop string."""
        self._held += self._shown.add(token)
        ends = [] if self._shown.found is None else [self._shown.found]
        if self._special is not None:
            self._special.add(token)
            self._places.add(self._special.certain, self._shown.certain)
            if self._special.found is not None:
                ends.append(self._places.of(self._special.found))
        self._end = min(ends, default=None)
        return self.ended

    def take(self, *, last: bool = False) -> str:
        """Return what has become certain since the last call; last: all that is left."""
        before = self._shown.certain - len(self._held)
        if last or self.ended:
            piece, self._held = self.text[before:], ""
            self._finished = True
        else:
            upto = self._shown.doubtful
            if self._special is not None:
                upto = min(upto, self._places.of(self._special.doubtful))
            size = max(0, upto - before)
            piece, self._held = self._held[:size], self._held[size:]
        self._given.append(piece)
        return piece


class _Searched:
    """A text, searched for stop strings as it grows. Places are counted in its characters.

    certain: characters that are certain. found: where the first stop string begins. doubtful: from
    where on the certain text may be the beginning of one.
    """

    def __init__(self, decoder: TextDecoder, stop: tuple[str, ...]) -> None:
        self.decoder = decoder
        self.certain = 0
        self.found: int | None = None
        self.doubtful = 0
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._recent = ""  # the end of the certain text, a character shorter than a stop string

    def add(self, token: int) -> str:
        """Take the next token and return the text that has become certain."""
        piece = self.decoder.add(token)
        certain = self._recent + piece
        begin = self.certain - len(self._recent)
        self.certain += len(piece)
        self.doubtful = self.certain
        if not self._stop or self.found is not None:
            return piece
        places = [(certain + self.decoder.tail).find(text) for text in self._stop]
        found = [place for place in places if place >= 0]
        if found:
            self.found = begin + min(found)
        self._recent = certain[max(0, len(certain) - self._longest + 1) :]
        self.doubtful -= self._begun()
        return piece

    def _begun(self) -> int:
        """Return how many characters at the end may be the beginning of a stop string."""
        for start in range(len(self._recent)):
            end = self._recent[start:]
            if any(text.startswith(end) for text in self._stop):
                return len(end)
        return 0


@dataclass(slots=True)
class _Places:
    """Where the shown text stands for each place of the text with special tokens."""

    _special: list[int] = field(default_factory=lambda: [0])
    _shown: list[int] = field(default_factory=lambda: [0])

    def add(self, special: int, shown: int) -> None:
        """Take how much of both is certain behind the next token."""
        self._special.append(special)
        self._shown.append(shown)

    def of(self, place: int) -> int:
        """Return the place in the shown text; what a special token says has none of its own."""
        token = bisect_right(self._special, place) - 1
        shown = self._shown[token] + place - self._special[token]
        return min(shown, self._shown[token + 1]) if token + 1 < len(self._shown) else shown
