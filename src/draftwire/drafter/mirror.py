"""The processors of a STEP, on the drafter's side: what they do to the row behind a text (A30)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftwire.kernels.adjustments import Added, Adjustment, Kept, Scaled
from draftwire.session.prefix import Prefix
from draftwire.wire.processors import (
    Allow,
    Bias,
    NoRepeatNgram,
    Occurrence,
    Processor,
    Repetition,
    Sequences,
    Suppress,
    decode_processors,
)

_NEVER: Final = np.float32(-np.inf)
_ROOM: Final = 1024  # tokens that there is room for at first

Ids: TypeAlias = NDArray[np.int64]


class Mirror:
    """The processors of one session, and its text: the committed prefix and the drafts behind it.

    What has occurred is counted as the text grows, so that a round costs its new tokens and the ids
    that are changed, not the whole text; only n-grams that may not repeat look through all of it.
    Raises ProtocolError for bytes that are no processors over [0, V).
    """

    def __init__(self, encoded: bytes, prefix: Prefix, vocab_size: int) -> None:
        """Take the processors of a policy and the prefix that they will be asked about."""
        self.encoded = encoded
        self.prefix = prefix
        self._text = Text()
        self._counts: dict[int, Counts] = {}  # by the first position that is counted
        self._committed = 0
        processors = decode_processors(encoded, vocab_size)
        for each in processors:
            if isinstance(each, Repetition | Occurrence) and each.start not in self._counts:
                self._counts[each.start] = Counts(vocab_size)
        self._rules = [self._rule(each) for each in processors]

    def follow(self, length: int) -> None:
        """Go to the first ``length`` tokens of the prefix; drafts behind the last ones are gone."""
        while len(self._text) > self._committed:
            self._undraft()
        self._grow(self.prefix.tokens(self._committed, length))
        self._committed = length

    def draft(self, token: int) -> None:
        """A draft has been drawn: it is text for the rows behind it."""
        self._grow((token,))

    def adjustments(self) -> list[Adjustment]:
        """Return what the processors do to the row behind the text, in their order."""
        return [each for rule in self._rules if (each := rule()) is not None]

    def _grow(self, tokens: Sequence[int]) -> None:
        position = len(self._text)
        self._text.extend(tokens)
        for start, counts in self._counts.items():
            counts.add(self._text.since(max(start, position)))

    def _undraft(self) -> None:
        token = self._text.pop()
        for start, counts in self._counts.items():
            if len(self._text) >= start:
                counts.remove(token)

    def _rule(self, processor: Processor) -> Callable[[], Adjustment | None]:
        """Return what says how a processor changes the row behind the text."""
        match processor:
            case Repetition(start, penalty):
                return _Scaling(self._counts[start], penalty)
            case Occurrence(start, presence, frequency):
                return _Lowering(self._counts[start], presence, frequency)
            case NoRepeatNgram(start, size):
                return lambda: _banned(followers(self._text.since(start), size))
            case Bias(ids, biases):
                added = Added(np.array(ids, np.int64), np.array(biases, np.float32))
                return lambda: added
            case Suppress(begin, end, ids):
                banned = _banned(np.array(ids, np.int64))
                return lambda: banned if begin <= len(self._text) < end else None
            case Allow(begin, end, ids):
                kept = Kept(np.array(ids, np.int64))
                return lambda: kept if begin <= len(self._text) < end else None
            case Sequences(start, sequences):
                return _Completions(self._text, start, sequences)


class Text:
    """Ids, int64 (n,), in an array that has room for more."""

    def __init__(self) -> None:
        self._ids = np.empty(_ROOM, np.int64)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def since(self, start: int) -> Ids:
        """The ids from a position on; a view, until the text changes."""
        return self._ids[min(start, self._length) : self._length]

    def extend(self, tokens: Sequence[int] | Ids) -> None:
        """Append ids."""
        end = self._length + len(tokens)
        if end > len(self._ids):
            more = np.empty(max(end, 2 * len(self._ids)) - self._length, np.int64)
            self._ids = np.concatenate((self._ids[: self._length], more))
        self._ids[self._length : end] = tokens
        self._length = end

    def pop(self) -> int:
        """Take the last id off, and return it."""
        self._length -= 1
        return int(self._ids[self._length])


class Counts:
    """How often each id has occurred, and which have, in the order in which they first did."""

    def __init__(self, vocab_size: int) -> None:
        self._counts = np.zeros(vocab_size, np.int32)
        self._ids = Text()

    @property
    def ids(self) -> Ids:
        """Those that have; a view, until they change."""
        return self._ids.since(0)

    @property
    def counts(self) -> NDArray[np.int32]:
        """How often each of ``ids`` has."""
        return self._counts[self.ids]

    def add(self, tokens: Ids) -> None:
        """Count tokens that follow."""
        ids, counts = np.unique(tokens, return_counts=True)
        self._ids.extend(ids[self._counts[ids] == 0])
        self._counts[ids] += counts.astype(np.int32)

    def remove(self, token: int) -> None:
        """Take back the last token, which was added alone."""
        self._counts[token] -= 1
        if not self._counts[token]:
            self._ids.pop()


class _Scaling:
    """REPETITION."""

    def __init__(self, counts: Counts, penalty: float) -> None:
        self._counts = counts
        self._penalty = np.float32(penalty)

    def __call__(self) -> Scaled:
        ids = self._counts.ids
        return Scaled(ids, np.full(len(ids), self._penalty, np.float32))


class _Lowering:
    """OCCURRENCE."""

    def __init__(self, counts: Counts, presence: float, frequency: float) -> None:
        self._counts = counts
        self._presence, self._frequency = presence, frequency

    def __call__(self) -> Added:
        amounts = -(self._presence + self._frequency * self._counts.counts.astype(np.float64))
        return Added(self._counts.ids, amounts.astype(np.float32))


class _Completions:
    """SEQUENCES, by the id before the last one; those of one id are always complete."""

    def __init__(
        self, text: Text, start: int, sequences: Sequence[tuple[float, tuple[int, ...]]]
    ) -> None:
        self._text, self._start, self._sequences = text, start, sequences
        self._behind: dict[int, list[int]] = defaultdict(list)
        self._always = [at for at, (_, ids) in enumerate(sequences) if len(ids) == 1]
        for at, (_, ids) in enumerate(sequences):
            if len(ids) > 1:
                self._behind[ids[-2]].append(at)

    def __call__(self) -> Added | None:
        sums: dict[int, float] = {}
        for at in self._complete():
            bias, ids = self._sequences[at]
            sums[ids[-1]] = sums.get(ids[-1], 0.0) + bias
        if not sums:
            return None
        ids_, sums_ = np.array(list(sums), np.int64), np.array(list(sums.values()), np.float64)
        return Added(ids_, sums_.astype(np.float32))

    def _complete(self) -> Iterator[int]:
        """Yield which sequences the next token may end, in their order."""
        text = self._text.since(self._start)
        behind = self._behind.get(int(text[-1]), []) if len(text) else []
        for at in sorted([*self._always, *behind]):
            before = self._sequences[at][1][:-1]
            if len(before) <= len(text) and tuple(text[len(text) - len(before) :]) == before:
                yield at


def followers(text: Ids, size: int) -> Ids:
    """Return the ids that stand behind the last ``size - 1`` of a text anywhere in it."""
    if len(text) < size:
        return text[:0]
    places = np.arange(size - 1, len(text))
    if size > 1:  # most are gone after the first look, which needs no copy
        places = places[text[size - 2 : -1] == text[-1]]
    for back in range(2, size):
        places = places[text[places - back] == text[-back]]
    return np.unique(text[places])


def _banned(ids: Ids) -> Added:
    return Added(ids, np.full(len(ids), _NEVER, np.float32))
