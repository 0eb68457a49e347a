"""Where the time of a round goes: the same program and client in this process, piece by piece.

A channel between them takes the times, so that nothing of either is changed or left out. What a
round between two processes takes beyond these pieces is the sockets', the two wake-ups' and that of
caches which were cold after them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from draftwire.drafter.program import DrafterProgram
from draftwire.drafter.propose import Proposer
from draftwire.transport.channel import Channel, Part
from draftwire.transport.queue import joined

ASK = "verifier: check, build and encode STEP"
STEP = "drafter: receive, decode and apply STEP"
DRAW = "drafter: words and draws"
ANSWER = "drafter: encode REPLY and COMPLETE"
TAKE = "verifier: receive, decode and validate both"
AUDIT = "verifier: audit every draw"
COMMIT = "verifier: commit"
BOOK = "drafter: booking, while the verifier goes on"
STAGES = (ASK, STEP, DRAW, ANSWER, TAKE, AUDIT, COMMIT, BOOK)

_clock = time.perf_counter


class Stages:
    """Seconds of each stage, a list over rounds; give it the proposer and the channel to watch."""

    def __init__(self) -> None:
        """Begin without rounds."""
        self.seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
        self._now: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._sent_at = 0.0
        self._received_at = 0.0

    def watch_proposer(self, proposer: Proposer[Any]) -> Proposer[Any]:
        """Return the proposer, timed."""

        def timed(*arguments: Any, **options: Any) -> Any:
            began = _clock()
            drafts = proposer(*arguments, **options)
            self._now[DRAW] = _clock() - began
            return drafts

        return timed

    def watch_booking(self, program: DrafterProgram[Any]) -> None:
        """Time what a program does once its answers are on their way."""
        book = program.book

        def timed() -> None:
            began = _clock()
            book()
            self._now[BOOK] = _clock() - began

        program.book = timed  # type: ignore[method-assign]

    def watch_channel(self, channel: Channel) -> Channel:
        """Return the channel to a program in this process, timed."""
        return _Watched(channel, self)

    def round(self, propose: Callable[[], float], commit: Callable[[], None]) -> None:
        """Run one round. propose: returns the seconds that its audit took."""
        began = _clock()
        audit = propose()
        proposed = _clock()
        commit()
        ended = _clock()
        self._now[ASK] = self._sent_at - began
        self._now[AUDIT] = audit
        self._now[TAKE] = proposed - self._received_at - audit
        self._now[COMMIT] = ended - proposed
        for stage, seconds in self._now.items():
            self.seconds[stage].append(seconds)

    def sent(self, began: float, ended: float) -> None:
        """A STEP was handed over, and applied at once."""
        self._sent_at = began
        self._now[STEP] = ended - began

    def received(self, began: float, ended: float) -> None:
        """A proposal was made and encoded meanwhile."""
        self._now[ANSWER] = ended - began - self._now[DRAW] - self._now[BOOK]
        self._received_at = ended


class _Watched:
    def __init__(self, channel: Channel, stages: Stages) -> None:
        self._channel = channel
        self._stages = stages

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        parts = joined(parts)  # as a socket's channel does
        began = _clock()
        self._channel.send(parts, deadline)
        self._stages.sent(began, _clock())

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        began = _clock()
        count = self._channel.receive_into(buffer, deadline)
        self._stages.received(began, _clock())
        return count

    def close(self) -> None:
        self._channel.close()
