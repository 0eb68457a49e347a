"""What a user is told of rounds without a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from draftwire.session.reasons import DropReason
from draftwire.verifier.miss import Miss, MissReason, Reason

_ALONE: Final = "going on with the target alone"
_AWAY: Final = f"the drafter is away: {_ALONE} until it is back"
_FULL: Final = f"the drafter's context is full: {_ALONE}"
_NOTES: Final[dict[Reason, str]] = {
    MissReason.NO_CONNECTION: _AWAY,
    DropReason.DISCONNECTED: _AWAY,
    MissReason.CONTEXT_LIMIT: _FULL,
    DropReason.DECLINED_CONTEXT_LIMIT: _FULL,
    MissReason.NO_SLOT: f"the drafter takes no more sessions: {_ALONE}",
    MissReason.NOT_OFFERED: f"the drafter does not offer this layout or support: {_ALONE}",
    MissReason.UNSHARED_TOKEN: f"the text has left the shared vocabulary: {_ALONE}",
    MissReason.PAUSED: "proposals kept getting lost: drafting pauses and is tried again later",
    MissReason.QUARANTINED: "the drafter was lost in mid-round again: drafting pauses, ever longer",
    DropReason.AUDIT_FAILED: "a draft was not drawn from the q that came with it: not used",
}


def note_of(miss: Miss, said: Sequence[str]) -> str | None:
    """Return what to tell the user of a miss; None = nothing, or what ``said`` has already."""
    note = _NOTES.get(miss.reason)
    if note is None or any(each.startswith(note) for each in said):
        return None
    return f"{note} ({miss.detail})" if miss.detail else note
