"""All that may come for one STEP: whole, half, forged, declined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ProtocolErrorCode
from draftwire.kernels import cpu
from draftwire.kernels.rows import QRow
from draftwire.kernels.words import proposal_words
from draftwire.session.proposal import Draft, Received
from draftwire.session.reply import answered, declined
from draftwire.wire.agreement import Agreed
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import Complete, ErrorMessage, Reply, ReplyRows, Step
from draftwire.wire.registry import Status
from testing.harness.joined import received, row_after, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

WHOLE: Final = "whole"
HALF: Final = "half"  # its last row has a wrong mass
FORGED: Final = "forged"  # its first token was not drawn from its q
REPLIES: Final = (WHOLE, HALF, FORGED)


@dataclass(frozen=True, eq=False)
class Answer:
    """messages: what may come, by name. tokens, rows: what the whole reply holds."""

    messages: dict[str, Received]
    tokens: tuple[int, ...]
    rows: tuple[QRow, ...]


_MADE: dict[object, Answer] = {}


def answer_to(step: Step, prefix: Sequence[int], agreed: Agreed) -> Answer:
    """Return what may come for a STEP after this prefix."""
    named = (step.session, step.slot, step.policy, step.generation, step.round, *prefix)
    if named not in _MADE:
        _MADE[named] = _made(step, prefix, agreed)
    return _MADE[named]


def _made(step: Step, prefix: Sequence[int], agreed: Agreed) -> Answer:
    depth = step.policy.depth
    words = proposal_words(step.proposal_key, step.generation, step.round, len(prefix), depth)
    draft = Draft()
    for word in words.tolist():
        row = row_after((step.session, *prefix, *draft.tokens), step.policy)
        draft.rows.append(row)
        draft.tokens.append(next(t for t in range(agreed.vocab_size) if cpu.draw(row, word) == t))
    reply, end = (each.message for each in unpacked(answered(step, draft, agreed), agreed))
    assert isinstance(reply, Reply)
    assert isinstance(end, Complete)
    messages: dict[str, Received] = {}
    for name, made in (
        (WHOLE, reply),
        (HALF, _half(reply)),
        (FORGED, _forged(reply, draft.rows[0])),
    ):
        came = received(made, agreed)
        messages[name] = came
        if name == HALF:
            continue
        messages[f"end of {name}"] = received(replace(end, reply_checksum=came.checksum), agreed)
    (messages["declined"],) = unpacked(declined(step, Status.INTERNAL, agreed), agreed)
    lost = ErrorMessage(ProtocolErrorCode.UNKNOWN_PREFIX, step.session, step.generation, step.round)
    messages["error"] = received(lost, agreed)
    return Answer(messages, tuple(draft.tokens), tuple(draft.rows))


def _half(reply: Reply) -> Reply:
    """Another weight at the end of the last row: its mass is not one any more."""
    *rows, last = reply.rows
    ticket, other = np.float32(2.0**-24).tobytes(), np.float32(2.0**-23).tobytes()
    q = bytes(last.q)
    q = q[:-4] + (other if q[-4:] == ticket else ticket)
    forged = replace(last, q=q, checksum=crc32c(q))
    return replace(reply, rows=ReplyRows.of((*rows, forged)))


def _forged(reply: Reply, row: QRow) -> Reply:
    first, *rest = reply.rows
    other = next(t for t in range(row.vocab_size) if t != first.token and row.of(t))
    return replace(reply, rows=ReplyRows.of((replace(first, token=other), *rest)))
