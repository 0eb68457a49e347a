"""Mirrored processors: what the target does to its logits that follows from ids alone (P34, A30).

A verifier sends them with a STEP; the drafter applies them, in their order, to its own logits. Any
q is lossless, so they decide how often drafts are accepted and nothing else.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NoReturn, TypeAlias

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.registry import (
    MAX_PENALTY,
    MAX_PROCESSOR_BYTES,
    MAX_PROCESSORS,
    MAX_SEQUENCE,
    PROCESSOR_FIELDS,
    ProcessorKind,
)

ALWAYS: Final = (1 << 32) - 1
"""The end of a range of positions that does not end."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """A logit of an id that occurs: above 0 divided by the penalty, otherwise multiplied by it.

    start: the first position whose id counts; 0 = prompt and output.
    """

    start: int
    penalty: float


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An id that occurs c times loses ``presence + frequency * c``."""

    start: int
    presence: float
    frequency: float


@dataclass(frozen=True, slots=True)
class NoRepeatNgram:
    """No ``size`` ids in a row occur twice."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to the logits of ids, which rise; -infinity bans one."""

    ids: tuple[int, ...]
    biases: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Suppress:
    """Ids, which rise, that do not stand at the positions ``begin`` to ``end - 1``."""

    begin: int
    end: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Allow:
    """Ids, which rise, that stand alone at the positions ``begin`` to ``end - 1``."""

    begin: int
    end: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sequences:
    """What is added to the last id of a sequence where the text ends with the ids before it.

    sequences: (bias, ids) each; -infinity bans the sequence.
    """

    start: int
    sequences: tuple[tuple[float, tuple[int, ...]], ...]


Processor: TypeAlias = Repetition | Occurrence | NoRepeatNgram | Bias | Suppress | Allow | Sequences

_HEAD: Final = struct.Struct("<HH")
_PAIR: Final = struct.Struct("<fI")
_FORMATS: Final = {"u32": "I", "f32": "f"}
_FIXED: Final = {
    kind: struct.Struct("<" + "".join(_FORMATS[field.kind] for field in fields))
    for kind, fields in PROCESSOR_FIELDS.items()
}
_KINDS: Final[dict[type[Any], ProcessorKind]] = {
    Repetition: ProcessorKind.REPETITION,
    Occurrence: ProcessorKind.OCCURRENCE,
    NoRepeatNgram: ProcessorKind.NO_REPEAT_NGRAM,
    Bias: ProcessorKind.BIAS,
    Suppress: ProcessorKind.SUPPRESS,
    Allow: ProcessorKind.ALLOW,
    Sequences: ProcessorKind.SEQUENCES,
}


def encode_processors(processors: Iterable[Processor]) -> bytes:
    """Return the bytes of processors, in the order in which they are applied.

    Errors: ValueError for a value outside its type.
    """
    try:
        return b"".join(map(_encoded, processors))
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a processor's value is outside its type: {error}") from error


def decode_processors(data: bytes, vocab_size: int) -> tuple[Processor, ...]:
    """Return the processors of their bytes; everything is bounded, every id is in [0, V).

    Errors: ProtocolError BAD_FIELD for bytes that are no encoding.
    """
    if len(data) > MAX_PROCESSOR_BYTES:
        _refuse(f"{len(data)} bytes are over {MAX_PROCESSOR_BYTES}")
    reader = _Reader(data, vocab_size)
    found: list[Processor] = []
    while reader.left:
        if len(found) == MAX_PROCESSORS:
            _refuse(f"there are more than {MAX_PROCESSORS}")
        found.append(reader.processor())
    return tuple(found)


def well_formed(data: bytes, vocab_size: int) -> bool:
    """Say whether bytes are an encoding of processors."""
    try:
        decode_processors(data, vocab_size)
    except ProtocolError:
        return False
    return True


def _encoded(processor: Processor) -> bytes:
    kind = _KINDS[type(processor)]
    numbers = (getattr(processor, field.name) for field in PROCESSOR_FIELDS[kind])
    count, items = 0, b""
    if isinstance(processor, Bias):
        count = len(processor.ids)
        items = struct.pack(f"<{count}i{count}f", *processor.ids, *processor.biases)
    elif isinstance(processor, Suppress | Allow):
        count = len(processor.ids)
        items = struct.pack(f"<{count}i", *processor.ids)
    elif isinstance(processor, Sequences):
        count = len(processor.sequences)
        heads = (_PAIR.pack(bias, len(ids)) for bias, ids in processor.sequences)
        every = [each for _, ids in processor.sequences for each in ids]
        items = b"".join(heads) + struct.pack(f"<{len(every)}i", *every)
    return _HEAD.pack(kind, count) + _FIXED[kind].pack(*numbers) + items


class _Reader:
    """Reads processors from the front of bytes, checking each number before it is used."""

    def __init__(self, data: bytes, vocab_size: int) -> None:
        self._data = data
        self._at = 0
        self._vocab_size = vocab_size

    @property
    def left(self) -> int:
        """Bytes that are not read."""
        return len(self._data) - self._at

    def processor(self) -> Processor:
        """Return the next one."""
        number, count = self._take(_HEAD)
        make = _MAKERS.get(number)
        if make is None:
            _refuse(f"{number} is no kind of processor")
        with_items = number >= ProcessorKind.BIAS
        if with_items is not (count > 0):
            _refuse(f"{count} items in a {ProcessorKind(number).name}")
        return make(self, count, *self._take(_FIXED[ProcessorKind(number)]))

    def repetition(self, _: int, start: int, penalty: float) -> Repetition:
        """Return a repetition penalty."""
        if not 1 / MAX_PENALTY <= penalty <= MAX_PENALTY:
            _refuse(f"a repetition penalty of {penalty}")
        return Repetition(start, penalty)

    def occurrence(self, _: int, start: int, presence: float, frequency: float) -> Occurrence:
        """Return penalties of what occurs."""
        _require_number(presence)
        _require_number(frequency)
        return Occurrence(start, presence, frequency)

    def no_repeat_ngram(self, _: int, start: int, size: int) -> NoRepeatNgram:
        """Return the size of n-grams that do not occur twice."""
        if not 1 <= size <= MAX_SEQUENCE:
            _refuse(f"n-grams of {size}")
        return NoRepeatNgram(start, size)

    def bias(self, count: int) -> Bias:
        """Return biases of single ids."""
        ids = self._rising(count)
        biases = self._numbers("f", count)
        for bias in biases:
            _require_bias(bias)
        return Bias(ids, biases)

    def suppress(self, count: int, begin: int, end: int) -> Suppress:
        """Return ids that are not allowed."""
        _require_range(begin, end)
        return Suppress(begin, end, self._rising(count))

    def allow(self, count: int, begin: int, end: int) -> Allow:
        """Return ids that alone are allowed."""
        _require_range(begin, end)
        return Allow(begin, end, self._rising(count))

    def sequences(self, count: int, start: int) -> Sequences:
        """Return biases of sequences."""
        if self.left < count * _PAIR.size:
            _refuse("it is cut short")
        heads = [self._take(_PAIR) for _ in range(count)]
        for bias, length in heads:
            _require_bias(bias)
            if not 1 <= length <= MAX_SEQUENCE:
                _refuse(f"a sequence of {length}")
        return Sequences(start, tuple((bias, self._ids(length)) for bias, length in heads))

    def _take(self, record: struct.Struct) -> tuple[Any, ...]:
        if self.left < record.size:
            _refuse("it is cut short")
        values = record.unpack_from(self._data, self._at)
        self._at += record.size
        return values

    def _numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        if self.left < 4 * count:
            _refuse("it is cut short")
        values = struct.unpack_from(f"<{count}{kind}", self._data, self._at)
        self._at += 4 * count
        return values

    def _ids(self, count: int) -> tuple[int, ...]:
        ids = self._numbers("i", count)
        if not (min(ids) >= 0 and max(ids) < self._vocab_size):
            _refuse(f"an id is outside 0..{self._vocab_size - 1}")
        return ids

    def _rising(self, count: int) -> tuple[int, ...]:
        ids = self._ids(count)
        if any(one >= other for one, other in pairwise(ids)):
            _refuse("the ids do not rise")
        return ids


_MAKERS: Final[dict[int, Callable[..., Processor]]] = {
    ProcessorKind.REPETITION: _Reader.repetition,
    ProcessorKind.OCCURRENCE: _Reader.occurrence,
    ProcessorKind.NO_REPEAT_NGRAM: _Reader.no_repeat_ngram,
    ProcessorKind.BIAS: _Reader.bias,
    ProcessorKind.SUPPRESS: _Reader.suppress,
    ProcessorKind.ALLOW: _Reader.allow,
    ProcessorKind.SEQUENCES: _Reader.sequences,
}


def _require_range(begin: int, end: int) -> None:
    if begin >= end:
        _refuse(f"no position is in {begin}..{end}")


def _require_number(value: float) -> None:
    negative_zero = value == 0 and math.copysign(1, value) < 0
    if negative_zero or not -MAX_PENALTY <= value <= MAX_PENALTY:
        _refuse(f"{value} is no penalty and no bias")


def _require_bias(value: float) -> None:
    if value != -math.inf:
        _require_number(value)


def _refuse(message: str) -> NoReturn:
    field = "processor_bytes"
    raise ProtocolError(ProtocolErrorCode.BAD_FIELD, f"{field}: {message}", field=field)
