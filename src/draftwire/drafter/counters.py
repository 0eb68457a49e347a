"""What a drafter counts, over all its verifiers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from draftwire.errors import ProtocolErrorCode
from draftwire.telemetry.histogram import SECONDS, SIZES, Histogram, zeros
from draftwire.wire.registry import Status


class Rejection(Enum):
    """Why a connection was ended before HELLO was agreed, where no protocol error says it."""

    FULL = "full"  # as many connections as may be
    EVICTED = "crowded_out"  # the oldest without HELLO, while others wait
    TOO_SLOW = "too_slow"  # no HELLO in time
    NO_TLS = "no_tls"


class LeaseEnd(Enum):
    """Why a verifier that kept silent lost its agreed connection, or one session of it."""

    EXPIRED = "expired"  # silent for the whole lease
    EVICTED = "evicted"  # the longest without a proposal, when another one needed the place


@dataclass(slots=True)
class DrafterCounters:
    """Numbers alone, of fixed shape, so that another thread may read them at any time.

    connections: accepted; ended: of them, those that are over. sessions: that were drafted for.
    proposals, drafts: that were sent, and their positions. withdrawn: tasks that were cancelled
    before their batch. short: declined because answers held as much memory as they may.
    prefill_chunks: of long prefixes, before the last of each. fed_tokens: of prefixes that the
    model has read, one again where it was read again; drafts not among them. declined: answers
    other than a proposal. state_rows: hidden states of targets that the model was given.
    engine_failures: batches, and ends of contexts, that the engine answered
    with an exception. exhausted: failures to accept a connection, for want of descriptors or
    memory. batches, seconds: sizes of batches and the time they took. received, sent: bytes.
    rejected: connections that ended before HELLO was agreed. ended_leases: agreed connections that
    were ended for their silence; ended_sessions: single sessions. local_errors: protocol errors
    that ended a connection; refused: those that concerned one session; remote_errors: those that
    verifiers found in what was sent from here.
    """

    connections: int = 0
    ended: int = 0
    sessions: int = 0
    proposals: int = 0
    drafts: int = 0
    withdrawn: int = 0
    short: int = 0
    prefill_chunks: int = 0
    fed_tokens: int = 0
    state_rows: int = 0
    engine_failures: int = 0
    exhausted: int = 0
    received: int = 0
    sent: int = 0
    batches: Histogram = field(default_factory=lambda: Histogram(SIZES))
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    declined: dict[Status, int] = field(
        default_factory=lambda: zeros(each for each in Status if each is not Status.OK)
    )
    rejected: dict[Rejection, int] = field(default_factory=lambda: zeros(Rejection))
    ended_leases: dict[LeaseEnd, int] = field(default_factory=lambda: zeros(LeaseEnd))
    ended_sessions: dict[LeaseEnd, int] = field(default_factory=lambda: zeros(LeaseEnd))
    local_errors: dict[ProtocolErrorCode, int] = field(
        default_factory=lambda: zeros(ProtocolErrorCode)
    )
    refused: dict[ProtocolErrorCode, int] = field(default_factory=lambda: zeros(ProtocolErrorCode))
    remote_errors: dict[ProtocolErrorCode, int] = field(
        default_factory=lambda: zeros(ProtocolErrorCode)
    )
