"""A round without a proposal, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from draftwire.session.proposal import Proposal
from draftwire.session.reasons import DropReason


class MissReason(StrEnum):
    """Why nothing was asked of the drafter in a round; a counter, as DropReason is one."""

    NO_CONNECTION = "no_connection"  # unreachable, another program, or a refused HELLO
    PAUSED = "paused"  # backed off after proposals that were lost
    QUARANTINED = "quarantined"  # lost again in a way that may follow from what was drawn (law 4)
    CONTEXT_LIMIT = "context_limit"  # the committed prefix fills the drafter's context
    NOT_OFFERED = "not_offered"  # HELLO did not agree to the policy's layout or support
    NO_SLOT = "no_slot"  # more requests are open than HELLO agreed to
    UNSHARED_TOKEN = "unshared_token"  # the text holds an id outside the shared vocabulary
    BREAKER_OPEN = "breaker_open"  # drafting over this link costs more than it brings
    REQUEST_BREAKER_OPEN = "request_breaker_open"  # it does for this request alone
    BASELINE = "baseline"  # what a round costs without drafts is measured now and then


Reason: TypeAlias = MissReason | DropReason


@dataclass(frozen=True, slots=True)
class Miss:
    """A round without a proposal. ``drafted``: positions that were asked for and are lost."""

    reason: Reason
    detail: str = ""
    drafted: int = 0

    @property
    def asked(self) -> bool:
        """Whether a proposal was asked for, or a connection to ask on, and not just left out."""
        return isinstance(self.reason, DropReason) or self.reason is MissReason.NO_CONNECTION


Drafted: TypeAlias = Proposal | Miss
