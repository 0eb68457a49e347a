"""What a client counts of its drafter, over all its requests and connections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from draftwire.errors import ProtocolError, ProtocolErrorCode, RemoteError
from draftwire.session.reasons import DropReason
from draftwire.telemetry.histogram import SECONDS, Histogram, zeros


@dataclass(slots=True)
class Traffic:
    """Bytes on the wire for one request, frames included, and the seconds that auditing took.

    states: of the bytes sent, those of hidden states.
    """

    sent: int = 0
    received: int = 0
    states: int = 0
    audit_seconds: float = 0.0


def _drops() -> Counter[DropReason]:
    return Counter(zeros(DropReason))


@dataclass(slots=True)
class ClientCounters:
    """Numbers alone, of fixed shape, so that another thread may read them at any time.

    connections: agreed on HELLO. unreachable: attempts that found no drafter. lost:
    connections that ended otherwise than by our own closing. sent, received: bytes of rounds,
    frames included. state_bytes: of those sent, rows of hidden states. strays: messages for
    sessions that are over. round_trip: seconds from a STEP to its whole proposal. drops: what was
    dropped, by reason, stale and duplicate messages included. local_errors, remote_errors: protocol
    errors found here in what the drafter sent, and there in what was sent from here.
    """

    connections: int = 0
    unreachable: int = 0
    lost: int = 0
    sent: int = 0
    received: int = 0
    state_bytes: int = 0
    strays: int = 0
    round_trip: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    drops: Counter[DropReason] = field(default_factory=_drops)
    local_errors: dict[ProtocolErrorCode, int] = field(
        default_factory=lambda: zeros(ProtocolErrorCode)
    )
    remote_errors: dict[ProtocolErrorCode, int] = field(
        default_factory=lambda: zeros(ProtocolErrorCode)
    )

    def error(self, error: Exception | None) -> None:
        """Count a protocol error under the side that found it; anything else is no such error."""
        if isinstance(error, RemoteError):
            self.remote_errors[error.code] += 1
        elif isinstance(error, ProtocolError):
            self.local_errors[error.code] += 1
