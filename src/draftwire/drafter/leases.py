"""Leases: what keeps silent for too long loses its place; no clock and no socket here (P30)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Leases(Generic[Holder]):
    """The holders of places, the longest silent one first.

    ``now`` is in seconds and never falls from one call to the next. busy: says of a holder that
    something is owed to it, so that its silence is waiting; it keeps its place then.
    """

    def __init__(self, seconds: float, busy: Callable[[Holder], bool]) -> None:
        """Begin without holders. seconds: of silence that a lease lasts."""
        self._seconds = seconds
        self._busy = busy
        self._since: OrderedDict[Holder, float] = OrderedDict()

    def __len__(self) -> int:
        """How many hold a lease."""
        return len(self._since)

    def renew(self, holder: Holder, now: float) -> None:
        """A holder was heard or answered; the first time, its lease begins."""
        self._since[holder] = now
        self._since.move_to_end(holder)

    def end(self, holder: Holder) -> None:
        """Forget a holder; nothing happens if it holds no lease."""
        self._since.pop(holder, None)

    def silent(self, holder: Holder, now: float) -> float:
        """Return for how many seconds a holder has been silent."""
        return now - self._since[holder]

    def expired(self, now: float) -> list[Holder]:
        """Return whose leases are over, the longest silent one first."""
        over = []
        for holder, since in self._since.items():
            if now - since < self._seconds:
                break
            if not self._busy(holder):
                over.append(holder)
        return over

    def evictable(self, now: float, seconds: float) -> Holder | None:
        """Return the longest silent holder, if that is ``seconds`` or more; None = none."""
        for holder, since in self._since.items():
            if now - since < seconds:
                return None
            if not self._busy(holder):
                return holder
        return None

    def due(self) -> float | None:
        """Return when the next lease is over if nothing is heard till then; None = no holder."""
        for holder, since in self._since.items():
            if not self._busy(holder):
                return since + self._seconds
        return None
