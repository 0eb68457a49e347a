"""What the round loop needs of a drafter, wherever that drafter is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from draftwire.verifier.breaker import Breaker
from draftwire.verifier.counters import Traffic
from draftwire.verifier.miss import Drafted
from draftwire.verifier.states import StateSource
from draftwire.verifier.totals import Totals
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome


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


@runtime_checkable
class SendsStates(Protocol):
    """Drafting that sends hidden states of the target along, where the drafter reads them."""

    def use_states(self, source: StateSource) -> None:
        """Take them from there, from now on."""


class Drafter(Protocol):
    """Where proposals come from.

    breaker: decides between rounds whether they are drafted; None = always. totals: what its texts
    have come to, for telemetry.
    """

    breaker: Breaker | None
    totals: Totals

    def open(self, prompt: Sequence[int], proposal_key: int) -> DraftRequest:
        """Begin drafting for one request from ``prompt``; nothing is sent yet."""
