"""What the verifier tells its operator about the drafter: found, lost, dropped; never any text."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from draftwire.errors import ProtocolError
from draftwire.session.reasons import DropReason
from draftwire.telemetry.events import Limiter, log_event, one_line
from draftwire.verifier.breaker import BreakerState, Paused

_LOG: Final = logging.getLogger("draftwire.verifier")
_GRAVE: Final = {DropReason.AUDIT_FAILED}


class ClientLog:
    """The events of one drafter; each change is told once, each kind of loss once a second."""

    def __init__(self, name: str) -> None:
        """Begin without knowing whether it is there."""
        self._name = name
        self._there: bool | None = None
        self._limiter = Limiter(time.monotonic)

    def found(self) -> None:
        """A connection is agreed."""
        self._there = True
        log_event(
            _LOG, logging.INFO, "drafter_found", f"connected to {self._name}", peer=self._name
        )

    def unreachable(self, error: Exception) -> None:
        """An attempt to connect has failed."""
        if self._there is False:
            return
        self._there = False
        code = error.code.name.lower() if isinstance(error, ProtocolError) else None
        text = f"{self._name} is away: {one_line(error)}"
        log_event(_LOG, logging.WARNING, "drafter_away", text, peer=self._name, code=code)

    def lost(self, reason: DropReason, detail: str) -> None:
        """The connection has ended."""
        self._there = None
        text = f"lost {self._name} ({reason.value}): {one_line(detail)}"
        log_event(_LOG, logging.WARNING, "drafter_lost", text, peer=self._name, reason=reason.value)

    def dropped(self, reason: DropReason, detail: str) -> None:
        """A proposal was asked for and is lost; the round goes on with the target alone."""
        held = self._limiter.passes(reason.value)
        if held is None:
            return
        level = logging.ERROR if reason in _GRAVE else logging.INFO
        text = f"a proposal of {self._name} is lost ({reason.value}): {one_line(detail)}"
        log_event(
            _LOG,
            level,
            "proposal_lost",
            text,
            peer=self._name,
            reason=reason.value,
            held_back=held,
        )


def breaker_changed(changed: Sequence[Paused]) -> None:
    """Drafting has paused or goes on: of all requests of a drafter, or of one of them."""
    for each in changed:
        for_all = each.scope == "link" and each.state is BreakerState.OPEN
        log_event(
            _LOG,
            logging.WARNING if for_all else logging.INFO,
            "breaker",
            each.sentence,
            scope=each.scope,
            state=each.state.value,
            pauses=each.pauses,
        )
