"""What the round loop needs of a drafter, wherever that drafter is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from draftwire.session.proposal import Proposal
from draftwire.session.reasons import DropReason
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome

if TYPE_CHECKING:
    from draftwire.verifier.breaker import Breaker
    from draftwire.verifier.totals import Totals


class MissReason(Enum):
    """Why nothing was asked of the drafter in a round; a counter, as DropReason is one."""

    __hash__ = object.__hash__  # Enum's own is interpreted, and every paused round is counted

    NO_CONNECTION = "no_connection"  # nobody there, another program, or a refused HELLO
    PAUSED = "paused"  # backed off after proposals that were lost
    QUARANTINED = "suspect"  # lost again in a way that may follow from what was drawn (law 4)
    CONTEXT_LIMIT = "context_limit"  # the committed prefix fills the drafter's context
    NOT_OFFERED = "not_offered"  # HELLO did not agree to the policy's layout or support
    NO_SLOT = "no_slot"  # more requests are open than HELLO agreed to
    UNSHARED_TOKEN = "unshared_token"  # the text holds an id outside the shared vocabulary
    BREAKER_OPEN = "not_worth"  # the breaker: drafting costs more than it brings
    BASELINE = "sampled"  # the breaker: what a round costs without drafts is measured now and then


Reason: TypeAlias = MissReason | DropReason


@dataclass(frozen=True, slots=True)
class Miss:
    """A round without a proposal. ``drafted``: positions that were asked for and are lost."""

    reason: Reason
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

    def use_context(self, version: int) -> None:
        """Ask under this context version from now on; 0 until then.

        A proposal of this round that was asked under another one is dropped: the caller must not
        use it, and the round is target-only.
        """

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
    """Where proposals come from.

    breaker: decides between rounds whether they are drafted; None = always. totals: what its texts
    have come to, for whoever watches.
    """

    breaker: Breaker | None
    totals: Totals

    def open(self, prompt: Sequence[int], proposal_key: int) -> DraftRequest:
        """Begin drafting for one request from ``prompt``; nothing is sent yet."""
