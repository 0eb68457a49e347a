"""What the round loop needs of a drafter, wherever that drafter is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from draftwire.session.asking import Proposal
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome


class MissReason(Enum):
    """Why a round has no proposal; the counter it is booked under."""

    NO_CONNECTION = "no_connection"  # nobody there, or another program
    PAUSED = "paused"  # backed off after a miss; nothing was asked
    DEADLINE = "deadline"  # the reply was not whole in time
    CLOSED = "closed"  # the connection ended during the round
    CORRUPT = "corrupt"  # the reply broke the protocol, its own checksums included
    AUDIT = "audit"  # a token was not drawn from the q that was sent
    REMOTE_ERROR = "remote_error"  # the drafter says that the request broke the protocol
    LOST_STATE = "lost_state"  # the drafter no longer holds the prefix
    CONTEXT_LIMIT = "context_limit"  # the drafter's context is full; it stays so
    NO_SLOT = "no_slot"
    SHUTTING_DOWN = "shutting_down"
    REFUSED_ARITHMETIC = "refused_arithmetic"  # the drafter's own row was NaN or had no mass
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Miss:
    """A round without a proposal. ``drafted``: positions that were asked for and are lost."""

    reason: MissReason
    detail: str = ""
    drafted: int = 0


Drafted: TypeAlias = Proposal | Miss


@dataclass(slots=True)
class Traffic:
    """Bytes on the wire for one request, frames included, and the seconds that auditing took."""

    sent: int = 0
    received: int = 0
    audit_seconds: float = 0.0


class DraftRequest(Protocol):
    """One request's drafting. None of these raise for anything that a drafter or a network does."""

    @property
    def generation(self) -> int:
        """The generation of the latest round."""

    @property
    def round(self) -> int:
        """The round id of the latest ``propose``."""

    @property
    def traffic(self) -> Traffic:
        """What this request has put on the wire."""

    def propose(self, policy: ProposalPolicy) -> Drafted:
        """Begin the next round and ask for at most ``policy.depth`` drafts after the prefix.

        The depth may be clipped by what HELLO agreed and by the drafter's context, never by
        anything drawn (A23).
        """

    def skip(self) -> None:
        """Begin the next round without asking: it is target-only by the caller's own choice."""

    def commit(self, outcome: Outcome, accepted: int, tokens: Sequence[int]) -> None:
        """End the round: ``tokens`` are committed, the first ``accepted`` of them drafts."""

    def close(self) -> None:
        """Free the request on both sides; may be called twice."""


class Drafter(Protocol):
    """Where proposals come from."""

    def open(self, prompt: Sequence[int], proposal_key: int) -> DraftRequest:
        """Begin drafting for one request from ``prompt``; nothing is sent yet."""
