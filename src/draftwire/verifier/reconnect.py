"""When to ask again after something was lost, and when to give a silent connection up."""

from __future__ import annotations

from typing import Final

from draftwire.session.reasons import DropReason
from draftwire.verifier.miss import MissReason, Reason

MOST_ROUNDS: Final = 64
FIRST_SUSPECT_ROUNDS: Final = 8
FIRST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 10.0
SILENT_DEADLINES: Final = 10
SILENT_ROUNDS: Final = 3


MAY_FOLLOW_A_DRAW: Final = frozenset(
    {
        DropReason.DISCONNECTED,
        DropReason.DECLINED_INTERNAL,
        DropReason.CONFLICT,
        DropReason.AUDIT_FAILED,
    }
)
"""Losses that a drafter may cause by what it has drawn: it died, failed, or said something else."""


class RoundPacing:
    """Rounds to leave out for one request: none after the first loss in a row, then 1, 2, 4 ... 64.

    One proposal between two losses begins anew, so a single loss costs a single round.

    Not so for the losses of MAY_FOLLOW_A_DRAW. A drafter that dies at tokens it has drawn selects
    among texts (law 4), and no number of proposals in between says that it does not. From the
    second of them in a session on, each leaves out twice as many rounds as the one before, 8, 16,
    32 ... without a bound: of n rounds of a text no more than about log2(n) can be lost like this.
    """

    def __init__(self) -> None:
        """Begin without losses."""
        self._losses = 0
        self._left_out = 0
        self._suspect = 0
        self._suspect_left_out = 0

    def pauses(self) -> MissReason | None:
        """Return why this round does not ask, or None if it may; call it once a round."""
        if self._suspect_left_out:
            self._suspect_left_out -= 1
            return MissReason.QUARANTINED
        if self._left_out:
            self._left_out -= 1
            return MissReason.PAUSED
        return None

    def lost(self, reason: Reason) -> None:
        """A proposal that was asked for was lost."""
        self._losses += 1
        if self._losses > 1:
            self._left_out = min(1 << (self._losses - 2), MOST_ROUNDS)
        if reason in MAY_FOLLOW_A_DRAW:
            self._suspect += 1
            if self._suspect > 1:
                self._suspect_left_out = FIRST_SUSPECT_ROUNDS << (self._suspect - 2)

    def won(self) -> None:
        """A proposal came."""
        self._losses = 0


class ConnectPacing:
    """Seconds between attempts to connect: 0.1 after a failure, doubled up to 5."""

    def __init__(self) -> None:
        """Begin without failures."""
        self._wait = 0.0
        self._not_before = 0.0

    def may_try(self, now: float) -> bool:
        """Say whether to try to connect now."""
        return now >= self._not_before

    def failed(self, now: float) -> None:
        """An attempt has failed."""
        self._wait = min(max(2 * self._wait, FIRST_SECONDS), MOST_SECONDS)
        self._not_before = now + self._wait

    def succeeded(self) -> None:
        """A connection is there, and both HELLOs."""
        self._wait = 0.0
        self._not_before = 0.0


class Silence:
    """Whether a connection that nothing is heard on is to be taken for dead.

    It is after three questions, ten seconds and ten deadlines without a byte in return: a line that
    lost its other end without a word (half-open), or a peer that will never answer. A drafter that
    is slow is heard late, which is heard; a machine that was suspended has asked once. Times are
    seconds of the caller's clock.
    """

    def __init__(self) -> None:
        """Begin with nothing asked."""
        self._since: float | None = None
        self._asked = 0

    def asked(self, now: float) -> None:
        """Something was asked."""
        self._asked += 1
        if self._since is None:
            self._since = now

    def heard(self) -> None:
        """Bytes came, or the connection is another one."""
        self._since, self._asked = None, 0

    def too_long(self, now: float, deadline: float) -> bool:
        """Say whether it has lasted too long; deadline: seconds of a round now."""
        if self._since is None or self._asked < SILENT_ROUNDS:
            return False
        return now - self._since >= max(SILENT_SECONDS, SILENT_DEADLINES * deadline)
