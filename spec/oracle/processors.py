"""Mirrored processors, rule P34 of spec/protocol.md and A30 of spec/arithmetic.md, in fractions.

A processor is ``(kind, numbers, items)``. Logits are fractions, or NEVER for -infinity.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from spec.oracle.arithmetic import binary64, nearest
from spec.oracle.frames import Refused

Processor = tuple[int, tuple[Any, ...], tuple[Any, ...]]

MOST_PROCESSOR_BYTES = 1 << 14
MOST_PROCESSORS = 16
MOST_IDS = 64
LARGEST = 1 << 14

REPETITION, OCCURRENCE, NO_REPEAT_NGRAM, BIAS, SUPPRESS, ALLOW, SEQUENCES = range(1, 8)
NUMBERS = {
    REPETITION: "If",
    OCCURRENCE: "Iff",
    NO_REPEAT_NGRAM: "II",
    BIAS: "",
    SUPPRESS: "II",
    ALLOW: "II",
    SEQUENCES: "I",
}


def require(holds: bool) -> None:
    """Any fault of an encoding has one code."""
    if not holds:
        raise Refused("BAD_FIELD", "processor_bytes")


def read_processors(data: bytes, vocab_size: int) -> list[Processor]:
    """P34: the processors of their bytes, or the refusal."""
    require(len(data) <= MOST_PROCESSOR_BYTES)
    found: list[Processor] = []
    while data:
        require(len(found) < MOST_PROCESSORS)
        processor, data = read_processor(data, vocab_size)
        found.append(processor)
    return found


def read(layout: str, data: bytes) -> tuple[tuple[Any, ...], bytes]:
    """Numbers from the front of bytes, and what is left."""
    size = struct.calcsize("<" + layout)
    require(len(data) >= size)
    return struct.unpack("<" + layout, data[:size]), data[size:]


def read_processor(data: bytes, vocab_size: int) -> tuple[Processor, bytes]:
    """One processor from the front of bytes, and what is left."""
    (kind, count), data = read("HH", data)
    require(kind in NUMBERS)
    require((count > 0) == (kind >= BIAS))
    numbers, data = read(NUMBERS[kind], data)
    if kind == REPETITION:
        require(math.isfinite(numbers[1]) and Fraction(1, LARGEST) <= numbers[1] <= LARGEST)
    elif kind == OCCURRENCE:
        require(is_number(numbers[1]) and is_number(numbers[2]))
    elif kind == NO_REPEAT_NGRAM:
        require(1 <= numbers[1] <= MOST_IDS)
    elif kind in (SUPPRESS, ALLOW):
        require(numbers[0] < numbers[1])
    items: tuple[Any, ...] = ()
    if kind == SEQUENCES:
        heads, data = read("fI" * count, data)
        require(all(is_bias(bias) for bias in heads[::2]))
        require(all(1 <= length <= MOST_IDS for length in heads[1::2]))
        sequences = []
        for bias, length in zip(heads[::2], heads[1::2], strict=True):
            ids, data = read(f"{length}i", data)
            require(all(0 <= each < vocab_size for each in ids))
            sequences.append((bias, ids))
        items = tuple(sequences)
    elif kind >= BIAS:
        items, data = read(f"{count}i", data)
        require(all(0 <= each < vocab_size for each in items))
        require(list(items) == sorted(set(items)))
    if kind == BIAS:
        biases, data = read(f"{count}f", data)
        require(all(map(is_bias, biases)))
        items = tuple(zip(items, biases, strict=True))
    return (kind, numbers, items), data


def is_number(value: float) -> bool:
    """Whether a binary32 may be a penalty."""
    return -LARGEST <= value <= LARGEST and (value != 0 or math.copysign(1, value) > 0)


def is_bias(value: float) -> bool:
    """Whether a binary32 may be a bias; -infinity bans."""
    return value == -math.inf or is_number(value)


def write_processors(processors: Sequence[Processor]) -> bytes:
    """P34: the bytes of processors."""
    data = b""
    for kind, numbers, items in processors:
        data += struct.pack("<HH" + NUMBERS[kind], kind, len(items), *numbers)
        if kind in (SUPPRESS, ALLOW):
            data += struct.pack(f"<{len(items)}i", *items)
        elif kind == BIAS:
            data += b"".join(struct.pack("<i", each) for each, _ in items)
            data += b"".join(struct.pack("<f", bias) for _, bias in items)
        elif kind == SEQUENCES:
            data += b"".join(struct.pack("<fI", bias, len(ids)) for bias, ids in items)
            data += b"".join(struct.pack(f"<{len(ids)}i", *ids) for _, ids in items)
    return data


# A30 ---------------------------------------------------------------------------------------------

NEVER = None
Logit = Fraction | None


def processed(
    logits: Sequence[Logit], text: Sequence[int], processors: Sequence[Processor]
) -> list[Logit]:
    """A30: a row of logits behind a text after processors; Refused where one comes to +infinity."""
    row = list(logits)
    for processor in processors:
        row = [changed(row[token], token, text, processor) for token in range(len(row))]
    return row


def changed(z: Logit, token: int, text: Sequence[int], processor: Processor) -> Logit:
    """One logit after one processor."""
    kind, numbers, items = processor
    if kind == REPETITION:
        start, penalty = numbers
        if z is NEVER or token not in text[start:]:
            return z
        penalty = Fraction(penalty)
        return narrowed(z / penalty if z > 0 else z * penalty)
    if kind == OCCURRENCE:
        start, presence, frequency = numbers
        count = text[start:].count(token)
        if not count:
            return z
        product = binary64(Fraction(frequency) * count)
        return plus(z, -binary64(Fraction(presence) + product))
    if kind == NO_REPEAT_NGRAM:
        start, size = numbers
        return NEVER if token in followers(tuple(text[start:]), size) else z
    if kind == BIAS:
        for each, bias in items:
            z = plus(z, bias) if each == token else z
        return z
    if kind == SEQUENCES:
        return plus_sum(z, token, tuple(text[numbers[0] :]), items)
    begin, end = numbers
    if not begin <= len(text) < end or (token in items) is (kind == ALLOW):
        return z
    return NEVER


def followers(text: tuple[int, ...], size: int) -> set[int]:
    """Ids that would end a sequence of ``size`` ids that the text holds already."""
    if len(text) < size - 1:
        return set()
    last = text[len(text) - size + 1 :]
    places = range(len(text) - size + 1)
    return {text[at + size - 1] for at in places if text[at : at + size - 1] == last}


def plus_sum(z: Logit, token: int, text: tuple[int, ...], sequences: tuple[Any, ...]) -> Logit:
    """A logit with the biases of the sequences that the token would end."""
    biases = [
        bias
        for bias, ids in sequences
        if ids[-1] == token and text[max(len(text) - len(ids) + 1, 0) :] == ids[:-1]
    ]
    if not biases or -math.inf in biases:
        return NEVER if biases else z
    total = Fraction(0)
    for bias in biases:
        total = binary64(total + Fraction(bias))
    return plus(z, total)


def plus(z: Logit, amount: Fraction | float) -> Logit:
    """A logit and an amount, which is a binary32 before it is added."""
    if z is NEVER or amount == -math.inf:
        return NEVER
    added = narrowed(Fraction(amount))
    return NEVER if added is NEVER else narrowed(z + added)


def narrowed(x: Fraction) -> Logit:
    """A binary32; what is larger is refused, as +infinity is (A1), and what is smaller never is."""
    rounded = nearest(x, 24, -149)
    if rounded >= Fraction(2) ** 128:
        raise Refused("NON_FINITE", "logits")
    return NEVER if rounded <= -(Fraction(2) ** 128) else rounded
