"""What a drafter's rank has drawn, until the link of the verifier it was drawn for takes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from draftwire.engines.parallel.drafter import RankedJob
from draftwire.rows.shards import ShardDraft
from draftwire.session.proposal import DraftTask
from draftwire.wire.registry import Status


@dataclass(slots=True)
class _Place:
    """One context of the leader's: its latest proposal, and the connection that takes from it."""

    job: RankedJob
    draft: ShardDraft | Status | None
    taker: Hashable | None = None


class ShardMailbox:
    """This rank's latest shard of each session, until its link takes it; for two threads.

    A place belongs to one context of the leader's, that is to one session of one connection there:
    the drafter counts contexts, and nothing that a peer says becomes the name of a place. The first
    connection here that names the session and proves with the link key that it is the same
    verifier's has the place from then on (P29), until it ends; no other reads it, changes it or
    empties it. One place a session that the leader has open, so it is bounded as those are.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._places: dict[int, _Place] = {}
        self._named: dict[tuple[int, int], list[int]] = {}  # by session and link key

    @property
    def empty(self) -> bool:
        """Whether no session has a place, and no key names one."""
        with self._lock:
            return not self._places and not self._named

    def put(self, job: RankedJob, draft: ShardDraft | Status) -> None:
        """A proposal has been drawn, in the place of the context's latest."""
        with self._lock:
            place = self._places.get(job.number)
            if place is None:
                place = self._places[job.number] = _Place(job, draft)
                self._list(job)
            elif _name(place.job) != _name(job):  # a STEP may name any key
                self._delist(place.job)
                self._list(job)
            place.job, place.draft = job, draft
        self.on_change()

    def end(self, number: int) -> None:
        """The session of this context is over."""
        with self._lock:
            place = self._places.pop(number, None)
            if place is not None:
                self._delist(place.job)

    def leave(self, taker: Hashable) -> None:
        """A connection has ended: its places are free for the verifier's next one."""
        with self._lock:
            for place in self._places.values():
                if place.taker is taker:
                    place.taker = None

    def has(self, taker: Hashable, task: DraftTask) -> bool:
        """Whether the shard that a connection's task asks for lies here for it."""
        with self._lock:
            return self._place(taker, task) is not None

    def take(self, taker: Hashable, task: DraftTask) -> ShardDraft | Status | None:
        """Return the shard that a connection's task asks for, once; None while it is not here."""
        with self._lock:
            place = self._place(taker, task)
            if place is None:
                return None
            draft, place.draft, place.taker = place.draft, None, taker
            return draft

    def _list(self, job: RankedJob) -> None:
        """A place is found by what its latest job is named by."""
        self._named.setdefault(_name(job), []).append(job.number)

    def _delist(self, job: RankedJob) -> None:
        numbers = self._named[_name(job)]
        numbers.remove(job.number)
        if not numbers:
            del self._named[_name(job)]

    def _place(self, taker: Hashable, task: DraftTask) -> _Place | None:
        """A session names its rounds once, so nothing else in its place can match."""
        for number in self._named.get((task.session, task.proposal_key), ()):
            place = self._places[number]
            job = place.job
            same = (job.generation, job.round, job.policy) == (
                task.generation,
                task.round,
                task.policy,
            )
            if same and place.draft is not None and place.taker in (None, taker):
                return place
        return None


def _name(job: RankedJob) -> tuple[int, int]:
    return job.session, job.link_key
