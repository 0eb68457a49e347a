"""What the drafter tells its operator: who came, who was turned away and why, and how it ended."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from typing import Final

from draftwire.drafter.counters import LeaseEnd
from draftwire.errors import ProtocolError
from draftwire.telemetry.events import Limiter, log_event, one_line
from draftwire.transport.tcp import Address

_LOG: Final = logging.getLogger("draftwire.drafter")


class DrafterLog:
    """Refusals are told at most once a second for each peer, with how many were not.

    Nothing that a peer sent is a format, a second line or longer than a line.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with nothing said. clock: seconds, monotonic."""
        self._refusals = Limiter(clock)
        self._comings = Limiter(clock)
        self._troubles = Limiter(clock, seconds=60.0)

    def opened(self, peer: str, host: str) -> None:
        """A connection is accepted."""
        held = self._comings.passes(_network(host))
        if held is not None:
            text = f"{peer} connected"
            log_event(_LOG, logging.INFO, "connection_opened", text, peer=peer, held_back=held)

    def closed(self, peer: str, reason: str) -> None:
        """An agreed connection is over."""
        text = f"{peer} is gone: {one_line(reason)}"
        log_event(_LOG, logging.INFO, "connection_closed", text, peer=peer, reason=one_line(reason))

    def lease_ended(self, peer: str, why: LeaseEnd, silent: float, sessions: int) -> None:
        """A verifier kept silent and has lost its connection."""
        cause = "its lease is over" if why is LeaseEnd.EXPIRED else "another needs its place"
        text = f"{peer} was silent for {silent:.0f} seconds and {cause}: {sessions} sessions end"
        fields = {"peer": peer, "why": why.value, "silent": round(silent, 3), "sessions": sessions}
        log_event(_LOG, logging.INFO, "lease_ended", text, **fields)

    def refused(self, peer: str, host: str, error: Exception) -> None:
        """A peer was turned away."""
        held = self._refusals.passes(_network(host))
        if held is None:
            return
        code = error.code.name if isinstance(error, ProtocolError) else None
        named = f" {code}" if code else ""
        more = f" (and {held} more before)" if held else ""
        text = f"{peer} was turned away:{named} {one_line(error)}{more}"
        lower = code.lower() if code else None
        log_event(_LOG, logging.WARNING, "refused", text, peer=peer, code=lower, held_back=held)

    def exhausted(self, error: OSError) -> None:
        """No connection can be accepted: descriptors or memory have run out."""
        held = self._troubles.passes("exhausted")
        if held is not None:
            text = f"no connection can be accepted: {one_line(error.strerror)}; raise ulimit -n"
            log_event(_LOG, logging.WARNING, "exhausted", text, held_back=held)

    def draining(self, seconds: float, sessions: int) -> None:
        """No more sessions are taken."""
        text = f"draining for at most {seconds:g} seconds: {_sessions(sessions, 'goes', 'go')} on"
        log_event(_LOG, logging.INFO, "draining", text, seconds=seconds, sessions=sessions)

    def ended(self, sessions: int) -> None:
        """The drafter goes away now."""
        text = "going away; no session is open"
        if sessions:
            text = f"going away; {_sessions(sessions, 'is', 'are')} left to the target alone"
        level = logging.WARNING if sessions else logging.INFO
        log_event(_LOG, level, "ended", text, sessions=sessions)


def _sessions(count: int, one: str, many: str) -> str:
    return f"{count or 'no'} session{'' if count == 1 else 's'} {one if count == 1 else many}"


def name_of(peer: tuple[str, int] | None) -> str:
    """Return where a connection comes from, for people."""
    return "a peer that has gone" if peer is None else str(Address(*peer))


def _network(host: str) -> str:
    """Return whom a limit is for: of IPv6 a whole /64, since one machine has all of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if address.version == 4 else address.exploded[:19]
