"""The states, inputs and transitions of a session: one table, the same for both roles.

A session is what its messages have made of it, from either side: the verifier's half advances
when it sends STEP, the drafter's half when it receives it. A missing entry is a protocol error.
Some inputs are not messages of their own but are implied by one: a STEP of a later round says that
the round in flight was given up, and its rider commits that round.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from draftwire.session.state_table import StateTable


class State(StrEnum):
    """Where one session stands; the value is its meaning."""

    IDLE = "no generation is open"
    OPEN = "a generation is open, between two rounds"
    ASKED = "a STEP is in flight"
    REPLIED = "its REPLY is there, its COMPLETE is not"
    PROPOSED = "the proposal is whole and not yet committed"
    TARGET_ONLY = "the round goes on without a proposal and is not yet committed"
    ENDED = "the session is over"


class Input(StrEnum):
    """What can happen to a session; the value is its meaning."""

    OPENING = "STEP that opens a generation: base 0, round 1, no commit rider"
    STEP = "STEP of the next round of the open generation"
    RETRY = "the latest STEP once more, byte for byte"
    REPLY = "REPLY to the STEP in flight"
    COMPLETE = "COMPLETE with status OK"
    DECLINE = "COMPLETE with another status"
    REFUSE = "ERROR about the STEP in flight"
    GIVE_UP = "the verifier drops the round's proposal: deadline, validation, or a later STEP"
    SKIP = "a round for which nothing is asked"
    COMMIT = "the round's outcome: COMMIT, or the rider of the next STEP"
    STALE = "a message of a generation or round that is over, or a duplicate"
    RESET = "RESET, or an opening STEP of a larger generation"
    CANCEL = "CANCEL, or the end of the connection on the drafter's side"


SESSION: Final = StateTable(
    State,
    Input,
    {
        State.IDLE: {
            Input.OPENING: State.ASKED,
            Input.SKIP: State.TARGET_ONLY,
            Input.STALE: State.IDLE,
            Input.RESET: State.IDLE,
            Input.CANCEL: State.ENDED,
        },
        State.OPEN: {
            Input.STEP: State.ASKED,
            Input.RETRY: State.OPEN,
            Input.SKIP: State.TARGET_ONLY,
            Input.STALE: State.OPEN,
            Input.RESET: State.IDLE,
            Input.CANCEL: State.ENDED,
        },
        State.ASKED: {
            Input.RETRY: State.ASKED,
            Input.REPLY: State.REPLIED,
            Input.DECLINE: State.TARGET_ONLY,
            Input.REFUSE: State.TARGET_ONLY,
            Input.GIVE_UP: State.TARGET_ONLY,
            Input.STALE: State.ASKED,
            Input.RESET: State.IDLE,
            Input.CANCEL: State.ENDED,
        },
        State.REPLIED: {
            Input.RETRY: State.REPLIED,
            Input.COMPLETE: State.PROPOSED,
            Input.REFUSE: State.TARGET_ONLY,
            Input.GIVE_UP: State.TARGET_ONLY,
            Input.STALE: State.REPLIED,
            Input.RESET: State.IDLE,
            Input.CANCEL: State.ENDED,
        },
        State.PROPOSED: {
            Input.RETRY: State.PROPOSED,
            Input.GIVE_UP: State.TARGET_ONLY,
            Input.COMMIT: State.OPEN,
            Input.STALE: State.PROPOSED,
            Input.RESET: State.IDLE,
            Input.CANCEL: State.ENDED,
        },
        State.TARGET_ONLY: {
            Input.RETRY: State.TARGET_ONLY,
            Input.COMMIT: State.OPEN,
            Input.STALE: State.TARGET_ONLY,
            Input.RESET: State.IDLE,
            Input.CANCEL: State.ENDED,
        },
        State.ENDED: {
            Input.STALE: State.ENDED,
            Input.CANCEL: State.ENDED,
        },
    },
)
"""The whole machine; an input that is missing here is a protocol error."""

advance: Final = SESSION.advance
