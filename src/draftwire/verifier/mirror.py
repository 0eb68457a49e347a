"""What of a target's processors goes into a STEP (P34): its ids and numbers, as far as one can."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from draftwire.verifier.engine import Context, MirrorsProcessors, TargetEngine
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.processors import (
    ALWAYS,
    Allow,
    Bias,
    NoRepeatNgram,
    Occurrence,
    Processor,
    Repetition,
    Sequences,
    Suppress,
    encode_processors,
)
from draftwire.wire.registry import (
    MAX_PENALTY,
    MAX_PROCESSOR_BYTES,
    MAX_PROCESSORS,
    MAX_SEQUENCE,
)

_MOST_ITEMS: Final = (1 << 16) - 1  # of one processor: its count is a u16


def mirrored(
    policy: ProposalPolicy | None, target: TargetEngine[Context], context: Context
) -> ProposalPolicy | None:
    """Return a request's policy with the processors of its target, as they are set now.

    Those of the policy itself stay where the target names none.
    """
    if policy is None or not isinstance(target, MirrorsProcessors):
        return policy
    processors = mirrored_bytes(target.processors(context), target.vocab_size)
    return policy if processors == policy.processors else replace(policy, processors=processors)


def mirrored_bytes(processors: Iterable[Processor], vocab_size: int) -> bytes:
    """Return the encoding of processors for a drafter of ``vocab_size`` ids; empty = of none.

    Ids outside [0, V) have no q and are left out, numbers are rounded to binary32 and cut to what
    P34 allows, and a processor that cannot be said, or for which there is no more room, is left
    out: any q is lossless. What remains keeps its order.
    """
    encoded: list[bytes] = []
    room = MAX_PROCESSOR_BYTES
    for each in processors:
        fitted = _fitted(each, vocab_size)
        if fitted is None or len(encoded) == MAX_PROCESSORS:
            continue
        data = encode_processors([fitted])
        if len(data) <= room:
            encoded.append(data)
            room -= len(data)
    return b"".join(encoded)


def _fitted(processor: Processor, vocab_size: int) -> Processor | None:
    """Return a processor that P34 allows, or None where nothing of it can be said."""
    match processor:
        case Repetition(start, penalty):
            said = 1 / MAX_PENALTY <= penalty <= MAX_PENALTY and penalty != 1
            return Repetition(_position(start), float(np.float32(penalty))) if said else None
        case Occurrence(start, presence, frequency):
            amounts = _finite(presence), _finite(frequency)
            return Occurrence(_position(start), *amounts) if any(amounts) else None
        case NoRepeatNgram(start, size):
            said = 1 <= size <= MAX_SEQUENCE
            return NoRepeatNgram(_position(start), size) if said else None
        case Bias(ids, biases):
            pairs = dict(zip(ids, map(_bias, biases), strict=True))
            known = _rising(pairs, vocab_size)
            return Bias(known, tuple(pairs[each] for each in known)) if known else None
        case Suppress(begin, end, ids) | Allow(begin, end, ids):
            known = _rising(ids, vocab_size)
            begin, end = _position(begin), _position(end)
            return type(processor)(begin, end, known) if known and begin < end else None
        case Sequences(start, sequences):
            said_ = [
                (_bias(bias), ids)
                for bias, ids in sequences
                if 1 <= len(ids) <= MAX_SEQUENCE and all(0 <= each < vocab_size for each in ids)
            ][:_MOST_ITEMS]
            return Sequences(_position(start), tuple(said_)) if said_ else None


def _position(place: int) -> int:
    return min(max(place, 0), ALWAYS)


def _bias(value: float) -> float:
    return value if value == -math.inf else _finite(value)


def _finite(value: float) -> float:
    """Return a binary32 of at most MAX_PENALTY in magnitude that is not -0.0, of NaN as well."""
    return float(np.float32(min(max(-MAX_PENALTY, value), MAX_PENALTY))) + 0.0


def _rising(ids: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    return tuple(sorted({each for each in ids if 0 <= each < vocab_size}))[:_MOST_ITEMS]
