"""Vectors of what one verifier may cost, where no clock decides it (P24)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spec.generators.vectors.drafters import (
    ALONE,
    LIMIT_EXCEEDED,
    PROMPT,
    asked,
    drafter,
    following,
)
from spec.generators.vectors.form import Vector
from spec.generators.vectors.peers import (
    answer_of,
    complete_frame,
    error_frame,
    step_frame,
    step_of,
)

UNKNOWN_PREFIX, WRONG_DIGEST = 97, 85
NO_SLOT_STATUS = 2

Turn = tuple[bytes, bytes]


def limited(note: str, *exchange: Turn, closed: bool = False, **limits: int) -> Vector:
    """A conversation with a drafter of these limits."""
    vector = {**drafter(note, *exchange, closed=closed), "op": "limited_drafter"}
    return {**vector, "limits": {"refusals": 256, "positions": 0, **limits}}


def vectors() -> Iterator[Vector]:
    """All of them."""
    yield from _refusals()
    yield from _positions()


def _refusals() -> Iterator[Vector]:
    """Messages that sessions refuse: so many, and the next one ends the connection."""
    first = step_of(PROMPT)
    right = following(first)
    wrong = {**right, "prefix_digest": bytes(16)}
    one: Turn = (step_frame(wrong), error_frame(WRONG_DIGEST, wrong))
    over = error_frame(LIMIT_EXCEEDED)

    def nobodys(session: int) -> Turn:
        step = step_of([*PROMPT, 1], session=session, round_=2, base=3, rider=(1, 0, ALONE))
        return step_frame(step), error_frame(UNKNOWN_PREFIX, step)

    def last(turn: Turn) -> Turn:
        return turn[0], turn[1] + over

    yield limited("as many refusals as may be", asked(first), one, one, asked(right), refusals=2)
    ended: dict[str, Any] = {"closed": True, "refusals": 2}
    yield limited("one refusal more ends it", asked(first), one, one, last(one), **ended)
    again = [asked(first), one, asked(right), nobodys(5), last(nobodys(5))]
    yield limited("good rounds make refusals no fewer", *again, **ended)
    apart = [nobodys(5), nobodys(6), last(nobodys(7))]
    yield limited("refusals are the verifier's, not a session's", *apart, **ended)
    retried = [asked(first), asked(first), asked(first), one, asked(right)]
    yield limited("a retry is no refusal", *retried, refusals=1)
    both = (one[0] + one[0] + step_frame(right), one[1] + one[1] + over)
    yield limited(
        "nothing behind the last refusal is read", asked(first), both, closed=True, refusals=1
    )


def _positions() -> Iterator[Vector]:
    """Drafts in flight: a round that asks for more than may be is declined."""
    one, other = step_of(PROMPT), step_of(PROMPT, session=8, slot=1, seed=2)
    both = step_frame(one) + step_frame(other)
    declined: Turn = (both, complete_frame(other, status=NO_SLOT_STATUS) + answer_of(one))
    changes: dict[str, Any] = {
        "session": 8,
        "slot": 1,
        "seed": 2,
        "round_": 2,
        "rider": (1, 0, ALONE),
    }
    later = step_of([*PROMPT, 1], **changes)
    yield limited("more drafts than may be in flight", declined, asked(later), positions=5)
    yield limited("as many as may be", (both, answer_of(one) + answer_of(other)), positions=6)
    yield limited("what is answered is not in flight", asked(one), asked(other), positions=5)
