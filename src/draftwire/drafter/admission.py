"""Who is admitted: unauthenticated peers for a short time, verifiers on a lease (P23, P30).

No clock and no socket here. ``now`` is in seconds and never falls from one call to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from draftwire.drafter.engine import Context
from draftwire.drafter.leases import Leases
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.peers import Peer


class Admission(Generic[Context]):
    """Connections that have not agreed on HELLO, oldest first, and the leases of those that have.

    A time in which no connection was read counts against none: the caller reads all that has come
    before it asks, and says with ``excuse`` how long it did something else.
    """

    def __init__(
        self, most: int, limits: PeerLimits, owes: Callable[[Peer[Context]], bool]
    ) -> None:
        """Begin empty. most: places there are. owes: whether a peer waits for a proposal."""
        self._most = most
        self._limits = limits
        self._half_open: dict[Peer[Context], None] = {}
        self._paused: set[Peer[Context]] = set()
        self._leases: Leases[Peer[Context]] = Leases(
            limits.lease_seconds, lambda peer: owes(peer) or peer in self._paused
        )
        # By proposals, not by frames: PING alone keeps no place that another could use.
        self._idle: Leases[Peer[Context]] = Leases(limits.lease_seconds, owes)

    def admit(self, peer: Peer[Context]) -> None:
        """A connection has come in and may try to agree until ``peer.deadline``."""
        self._half_open[peer] = None

    def agree(self, peer: Peer[Context], now: float) -> None:
        """A peer has agreed on HELLO and has a place: its lease begins."""
        self._half_open.pop(peer, None)
        self._leases.renew(peer, now)
        self._idle.renew(peer, now)

    def forget(self, peer: Peer[Context]) -> None:
        """A connection is over."""
        self._half_open.pop(peer, None)
        self._paused.discard(peer)
        self._leases.end(peer)
        self._idle.end(peer)

    def half_open(self, peer: Peer[Context]) -> bool:
        """Whether a peer has not agreed on HELLO yet."""
        return peer in self._half_open

    def renew(self, peer: Peer[Context], now: float) -> None:
        """A verifier was heard; an unauthenticated peer gains nothing."""
        if peer not in self._half_open:
            self._leases.renew(peer, now)

    def worked(self, peer: Peer[Context], now: float) -> None:
        """A verifier was sent a proposal, or took bytes of one that waited."""
        if peer not in self._half_open:
            self._leases.renew(peer, now)
            self._idle.renew(peer, now)

    def silent(self, peer: Peer[Context], now: float) -> float:
        """Return for how many seconds a verifier has been silent."""
        return self._leases.silent(peer, now)

    @property
    def taken(self) -> bool:
        """Whether every place is a verifier's."""
        return len(self._leases) >= self._most

    def evictable(self, now: float) -> Peer[Context] | None:
        """Return the verifier that is evicted for another, the longest without a proposal."""
        return self._idle.evictable(now, self._limits.evict_idle_after)

    def spare(self, now: float) -> int:
        """Return how many connections over the limit may try to agree.

        Those that have not agreed take no place, so they are counted for themselves. None may,
        where every place is a verifier's and none of them would yield.
        """
        return 0 if self.taken and self.evictable(now) is None else self._limits.max_half_open

    def crowded_out(self, now: float) -> Peer[Context] | None:
        """Return the unauthenticated peer that is evicted for a new connection; None = no need."""
        if len(self._half_open) >= self._limits.max_half_open and self.spare(now):
            return next(iter(self._half_open))
        return None

    def pause(self, peer: Peer[Context]) -> None:
        """A peer is not read from until ``peer.resumes``."""
        self._paused.add(peer)

    def paused(self, peer: Peer[Context]) -> bool:
        """Whether a peer is not read from for now."""
        return peer in self._paused

    def resumed(self, now: float) -> list[Peer[Context]]:
        """Return who may be read from again; what those have said meanwhile is only read now."""
        resumed = [peer for peer in self._paused if peer.resumes <= now]
        self._paused.difference_update(resumed)
        for peer in resumed:
            self.renew(peer, now)
        return resumed

    def too_slow(self, now: float) -> list[Peer[Context]]:
        """Return who has not agreed in time."""
        return [peer for peer in self._half_open if peer.deadline <= now]

    def expired(self, now: float) -> list[Peer[Context]]:
        """Return whose leases are over."""
        return self._leases.expired(now)

    def excuse(self, seconds: float) -> None:
        """Nothing was read for so long: it is not held against those that have to agree.

        A lease need not grow: what came in that time is read before a peer is judged.
        """
        for peer in self._half_open:
            peer.deadline += seconds

    def due(self) -> float | None:
        """Return when something has to be done though nothing comes; None = never."""
        times = [peer.deadline for peer in self._half_open]
        times += [peer.resumes for peer in self._paused]
        lease = self._leases.due()
        times += [] if lease is None else [lease]
        return min(times, default=None)
