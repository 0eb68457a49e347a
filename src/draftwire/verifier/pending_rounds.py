"""The rounds that a client has in flight, of all its threads, and how each has ended so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from draftwire.session.proposal import Dropped, Proposal
from draftwire.session.reasons import DropReason
from draftwire.session.verifier_session import VerifierSession


class PendingRounds:
    """Rounds of different requests, asked together; by session."""

    def __init__(self) -> None:
        """Begin with none."""
        self._asked: dict[int, VerifierSession] = {}
        self._results: dict[int, Proposal | Dropped] = {}

    def ask(self, asked: Mapping[int, VerifierSession]) -> None:
        """The rounds of these sessions, by number, are asked now."""
        self._asked.update(asked)

    @property
    def open(self) -> bool:
        """Whether a round has no result yet."""
        return len(self._results) < len(self._asked)

    def waiting(self, sessions: Iterable[int]) -> bool:
        """Whether a round of these sessions has no result yet."""
        return any(number not in self._results for number in sessions)

    def settle(self, session: int, result: Proposal | Dropped) -> None:
        """The round of a session has ended; nothing happens if none was asked."""
        if session in self._asked:
            self._results[session] = result

    def give_up(
        self, reason: DropReason, detail: str = "", sessions: Iterable[int] | None = None
    ) -> None:
        """Rounds without a result are lost, all or of these sessions; what is whole is usable."""
        for number in self._asked if sessions is None else sessions:
            if number in self._asked and number not in self._results:
                dropped = self._asked[number].give_up(reason)
                self._results[number] = replace(dropped, detail=detail)

    def forget(self, sessions: Iterable[int]) -> None:
        """Nobody waits for the rounds of these sessions any more."""
        for number in sessions:
            self._asked.pop(number, None)
            self._results.pop(number, None)

    def take(self, session: int) -> Proposal | Dropped:
        """Return the result of a round, and forget it; call it when it is there."""
        del self._asked[session]
        return self._results.pop(session)
