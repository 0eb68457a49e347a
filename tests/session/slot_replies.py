"""All that may come for one STEP: whole, half, forged, declined; decoded, or matched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ProtocolErrorCode
from draftwire.kernels import cpu
from draftwire.kernels.rows import QRow
from draftwire.kernels.words import first_words
from draftwire.session import answers
from draftwire.session.proposal import Matched, Received
from draftwire.wire import codec
from draftwire.wire.agreement import Agreed
from draftwire.wire.answer import HEAD_BYTES, Part, expected
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import Complete, ErrorMessage, Reply, Step
from draftwire.wire.registry import Status
from tests.session.joined import received, row_after, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

WHOLE: Final = "whole"
HALF: Final = "half"  # its last row has a wrong mass
FORGED: Final = "forged"  # its first token was not drawn from its q
REPLIES: Final = (WHOLE, HALF, FORGED)


@dataclass(frozen=True, eq=False)
class Answer:
    """messages: what may come, by name. tokens, counts (K, V): what the whole reply holds."""

    messages: dict[str, Received | Matched]
    tokens: tuple[int, ...]
    counts: NDArray[np.int32]


_MADE: dict[object, Answer] = {}


def answer_to(step: Step, prefix: Sequence[int], agreed: Agreed) -> Answer:
    """Return what may come for a STEP after this prefix."""
    named = (step.session, step.slot, step.generation, step.round, *prefix)
    if named not in _MADE:
        _MADE[named] = _made(step, prefix, agreed)
    return _MADE[named]


def _made(step: Step, prefix: Sequence[int], agreed: Agreed) -> Answer:
    depth = step.policy.depth
    words = first_words(step.proposal_key, step.generation, step.round, len(prefix), depth)
    drawn: list[tuple[int, QRow]] = []
    for word in words:
        row = row_after((step.session, *prefix, *(token for token, _ in drawn)), step.policy)
        token = next(t for t in range(row.vocab_size) if cpu.audit(row, t, word))
        drawn.append((token, row))
    reply, end = (each.message for each in unpacked(answers.whole(step, drawn, agreed), agreed))
    assert isinstance(reply, Reply)
    assert isinstance(end, Complete)
    messages: dict[str, Received | Matched] = {}
    for name, made in ((WHOLE, reply), (HALF, _half(reply)), (FORGED, _forged(reply, drawn[0][1]))):
        came = received(made, agreed)
        messages[name] = came
        messages[f"{name}, matched"] = _matched(came, step, agreed)
        if name != HALF:
            last = received(replace(end, reply_checksum=came.checksum), agreed)
            messages[f"end of {name}"] = last
            messages[f"end of {name}, matched"] = _matched(last, step, agreed)
    (messages["declined"],) = unpacked(answers.declined(step, Status.INTERNAL, agreed), agreed)
    lost = ErrorMessage(ProtocolErrorCode.UNKNOWN_PREFIX, step.session, step.generation, step.round)
    messages["error"] = received(lost, agreed)
    counts = np.stack([row.counts for _, row in drawn])
    return Answer(messages, tuple(token for token, _ in drawn), counts)


def _half(reply: Reply) -> Reply:
    *rows, last = reply.rows
    q = bytes(last.q[4:]) + bytes(last.q[:4])
    q = bytes(len(q) - 4) + bytes(np.float32(0.5).tobytes())  # half of the mass, on one id
    token = len(q) // 4 - 1
    return replace(reply, rows=(*rows, replace(last, token=token, q=q, checksum=crc32c(q))))


def _forged(reply: Reply, row: QRow) -> Reply:
    first, *rest = reply.rows
    other = next(t for t in range(row.vocab_size) if t != first.token and row.of(t))
    return replace(reply, rows=(replace(first, token=other), *rest))


def _matched(came: Received, step: Step, agreed: Agreed) -> Matched:
    """Return a message as the link does that has recognised its head."""
    payload = b"".join(bytes(part) for part in codec.encode(came.message))
    heads = expected(step, Part(0, 1, 0, agreed.vocab_size))
    (head,) = [each for each in heads if payload.startswith(each)]
    tail = memoryview(payload)[HEAD_BYTES[heads[head].type] :]
    return Matched(heads[head], tail, came.payload_bytes, came.checksum)
