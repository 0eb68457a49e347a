"""Faults of one request, or of the drafter, while several requests are asked in one go.

Each loses its own proposal and no other's: who had been answered whole goes on with what came.
"""

from __future__ import annotations

from typing import Final

from draftwire.wire.registry import WireVersion
from testing.faults.network import LATE, Applies, Fault, Variants
from testing.faults.scene import UNDER_WAY, Aimed, Moment, Scene, Strike
from testing.faults.together import MOMENTS
from testing.faults.world import Arrivals, Way

TOGETHER: Final = 3


def at_each(strike: Strike, *, frames_only: bool = False) -> Applies:
    """Return a strike at the frame (or, between frames, the turn) of each of the requests."""

    def applies(moment: Moment, version: WireVersion) -> Variants | str:
        if moment not in MOMENTS:
            return "no several requests have anything to lose in this state"
        if frames_only and moment not in UNDER_WAY:
            return "no frame is under way in this state"
        names = range(1, TOGETHER + 1)
        return [(f"{which} of {TOGETHER}", Aimed(strike, which)) for which in names]

    return applies


def killed(scene: Scene, frame: bytes | None) -> Arrivals:
    """kill -9; what had left whole before this frame still arrives."""
    line = scene.line
    assert line is not None
    sent = list(line.under_way[Way.BACK])
    scene.world.restart()
    for due, data in sent:
        line.put(Way.BACK, due, data)
    return []


def dropped(scene: Scene, frame: bytes | None) -> Arrivals:
    """This frame is lost; all others arrive."""
    return []


def late(scene: Scene, frame: bytes | None) -> Arrivals:
    """This frame comes after the deadline, and what is behind it too."""
    assert frame is not None
    return [(LATE, frame)]


FAULTS: Final = (
    Fault("several asked, drafter killed -9", at_each(killed), together=TOGETHER),
    Fault("several asked, a frame dropped", at_each(dropped, frames_only=True), together=TOGETHER),
    Fault("several asked, a frame too late", at_each(late, frames_only=True), together=TOGETHER),
)
"""Rows of the matrix in which several requests are in flight."""
