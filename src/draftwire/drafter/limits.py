"""What one verifier may cost (P23, P24)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftwire.bounds import require_number, require_seconds, require_whole
from draftwire.errors import ConfigurationError
from draftwire.transport.limits import TokenBucket

YIELD_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits of each peer; the defaults are far above what a verifier with a real target does.

    handshake_seconds: from the connection until HELLO is agreed, TLS and key included.
    max_half_open: connections that have not got there; the oldest goes first.
    frames_per_second, bytes_per_second: what is read, one second's worth at once; more waits.
    refusals_per_second, refusals_at_once: messages that a session refuses; more ends it all.
    max_positions: drafts asked for and not yet answered; 0 = what sessions and depth allow; more
    are declined.
    prefill_chunk_tokens: of a prefix that one batch feeds; a longer one is fed over several
    batches, between which others are drawn for. All that is shorter shares as many among the
    verifiers that wait.
    lease_seconds: of silence, after which an agreed connection for which nothing is being drafted
    ends, and its sessions with it; every whole frame renews the lease, PING too (P30).
    yield_seconds: without a proposal, after which it may be evicted for another verifier where
    all places are taken; None = 10, or the lease where that is shorter.
    """

    handshake_seconds: float = 5.0
    max_half_open: int = 16
    frames_per_second: float = 4_000.0
    bytes_per_second: float = 256.0 * (1 << 20)
    refusals_per_second: float = 4.0
    refusals_at_once: int = 256
    max_positions: int = 0
    prefill_chunk_tokens: int = 512
    lease_seconds: float = 300.0
    yield_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits under which no verifier could be served."""
        for name in ("handshake_seconds", "lease_seconds"):
            require_seconds(name, getattr(self, name))
        if self.yield_seconds is not None:
            require_seconds("yield_seconds", self.yield_seconds)
        for name in ("frames_per_second", "bytes_per_second", "refusals_per_second"):
            require_number(name, getattr(self, name))
        for name in ("max_half_open", "refusals_at_once", "prefill_chunk_tokens"):
            require_whole(name, getattr(self, name), 1)
        require_whole("max_positions", self.max_positions, 0)
        if self.evict_idle_after > self.lease_seconds:
            raise ConfigurationError(
                "yield_seconds must not exceed lease_seconds: after that a connection has ended"
            )

    @property
    def evict_idle_after(self) -> float:
        """Seconds without a proposal after which a verifier is evicted for another."""
        if self.yield_seconds is None:
            return min(YIELD_SECONDS, self.lease_seconds)
        return self.yield_seconds


class Allowance:
    """What is left of one peer's limits."""

    def __init__(self, limits: PeerLimits, now: float) -> None:
        """Begin with all of it."""
        self._frames = TokenBucket(limits.frames_per_second, limits.frames_per_second, now)
        self._bytes = TokenBucket(limits.bytes_per_second, limits.bytes_per_second, now)
        self._refusals = TokenBucket(limits.refusals_per_second, limits.refusals_at_once, now)
        self._excused = 0

    def read(self, frames: int, size: int, now: float) -> float:
        """Book what was read; returns the seconds for which no more may be."""
        return max(self._frames.spend(frames, now), self._bytes.spend(size, now))

    def excuse(self, most: int) -> None:
        """A session was ended on this side, so one message that it refuses is no fault of the peer.

        most: that are excused at once, whatever has ended.
        """
        self._excused = min(self._excused + 1, most)

    def refused(self, now: float) -> bool:
        """Book a message that a session refused; returns whether that was one too many."""
        if self._excused:
            self._excused -= 1
            return False
        return self._refusals.spend(1, now) > 0
