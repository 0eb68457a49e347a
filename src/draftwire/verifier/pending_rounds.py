"""The rounds that a client has in flight, and how each of them has ended so far."""

from __future__ import annotations

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

    def ask(self, asked: dict[int, VerifierSession]) -> None:
        """The rounds of these sessions, by number, are asked now; whatever was before is over."""
        self._asked = asked
        self._results.clear()

    def waiting(self) -> bool:
        """Whether a round has no result yet."""
        return len(self._results) < len(self._asked)

    def settle(self, session: int, result: Proposal | Dropped) -> None:
        """The round of a session has ended; nothing happens if none was asked."""
        if session in self._asked:
            self._results[session] = result

    def give_up(self, reason: DropReason, detail: str = "") -> None:
        """Every round without a result is lost; what is whole stays usable."""
        for number, session in self._asked.items():
            if number not in self._results:
                dropped = session.give_up(reason)
                self._results[number] = replace(dropped, detail=detail)

    def take(self, session: int) -> Proposal | Dropped:
        """Return the result of a round, and forget it; call it when all are there."""
        del self._asked[session]
        return self._results.pop(session)
