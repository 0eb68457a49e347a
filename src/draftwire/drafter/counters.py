"""What a drafter counts, over all its verifiers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from draftwire.errors import ProtocolErrorCode
from draftwire.telemetry.histogram import SECONDS, SIZES, Histogram, zeros
from draftwire.wire.registry import Status


class TurnedAway(Enum):
    """Why a connection was ended before HELLO was agreed, where no protocol error says it."""

    FULL = "full"  # as many connections as may be
    CROWDED_OUT = "crowded_out"  # the oldest without HELLO, while others wait
    TOO_SLOW = "too_slow"  # no HELLO in time
    NO_TLS = "no_tls"


class LeaseEnd(Enum):
    """Why a verifier that kept silent lost its agreed connection, or one session of it."""

    EXPIRED = "expired"  # silent for the whole lease
    EVICTED = "gave_way"  # the longest without a proposal, when another one needed the place


@dataclass(slots=True)
class DrafterCounters:
    """Numbers alone, of fixed shape, so that another thread may read them at any time.

    connections: accepted; ended: of them, those that are over. sessions: that were drafted for.
    proposals, drafts: that were sent, and their positions. withdrawn: tasks that nobody wanted any
    more. short: declined because answers held as much memory as they may. pieces: of long prefixes,
    fed before the last of each. declined: answers other than a proposal. engine_failures: batches,
    and ends of contexts, that the engine answered with an exception. exhausted: times that nobody
    could be accepted, for want of descriptors or memory. batches, seconds: sizes of batches and the
    time they took. received, sent: bytes. leases: agreed connections that were ended for their
    silence; lapsed: single sessions. found: protocol errors that ended a connection; refused: those
    that concerned one session; told: those that verifiers found in ours.
    """

    connections: int = 0
    ended: int = 0
    sessions: int = 0
    proposals: int = 0
    drafts: int = 0
    withdrawn: int = 0
    short: int = 0
    pieces: int = 0
    engine_failures: int = 0
    exhausted: int = 0
    received: int = 0
    sent: int = 0
    batches: Histogram = field(default_factory=lambda: Histogram(SIZES))
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    declined: dict[Status, int] = field(
        default_factory=lambda: zeros(each for each in Status if each is not Status.OK)
    )
    turned_away: dict[TurnedAway, int] = field(default_factory=lambda: zeros(TurnedAway))
    leases: dict[LeaseEnd, int] = field(default_factory=lambda: zeros(LeaseEnd))
    lapsed: dict[LeaseEnd, int] = field(default_factory=lambda: zeros(LeaseEnd))
    found: dict[ProtocolErrorCode, int] = field(default_factory=lambda: zeros(ProtocolErrorCode))
    refused: dict[ProtocolErrorCode, int] = field(default_factory=lambda: zeros(ProtocolErrorCode))
    told: dict[ProtocolErrorCode, int] = field(default_factory=lambda: zeros(ProtocolErrorCode))
