"""What happened, for the operator: events with named fields, on the standard ``logging``.

No event holds token ids or text. What a peer wrote is made one short printable line first.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

FIELDS: Final = "draftwire_fields"
"""The attribute of a log record that holds the fields, ``event`` among them."""

LONGEST: Final = 200

Value = str | int | float | bool | None


def log_event(log: logging.Logger, level: int, event: str, text: str, **fields: Value) -> None:
    """Log ``text`` at ``level``, with the event's name and its fields for structured logs.

    ``text`` is no format: nothing in it is expanded. A handler that fails is the handler's own
    business; it never raises here.
    """
    if not log.isEnabledFor(level):
        return
    try:
        log.log(level, "%s", text, extra={FIELDS: {"event": event, **fields}})
    except Exception:  # a sink of the application's own, such as one on a full disk
        return


def one_line(text: object) -> str:
    """Return a text escaped, so that it is printable ASCII and one short line."""
    return str(text).encode("unicode_escape").decode("ascii")[:LONGEST]


class Limiter:
    """Lets one line a peer through in ``seconds``, and says how many it held back meanwhile.

    It remembers the last ``peers`` of them, so unauthenticated peers cannot fill it.
    """

    def __init__(
        self, clock: Callable[[], float], *, seconds: float = 1.0, peers: int = 256
    ) -> None:
        """Begin with nothing said. clock: seconds, monotonic."""
        self._clock = clock
        self._seconds = seconds
        self._peers = peers
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def passes(self, peer: str) -> int | None:
        """Return how many lines of this peer were held back since its last one; None = hold it."""
        now = self._clock()
        until, held = self._known.pop(peer, (now, 0))
        if now < until:
            self._known[peer] = (until, held + 1)
            return None
        self._known[peer] = (now + self._seconds, 0)
        while len(self._known) > self._peers:
            self._known.popitem(last=False)
        return held
