"""The drafting of a request that has no drafter: none, with the same round numbers."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.verifier.counters import Traffic
from draftwire.verifier.miss import Drafted, Miss, MissReason
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome


class NoDrafter:
    """Stands where a drafter's request would; every round is target-only."""

    def __init__(self) -> None:
        """Begin before the first round."""
        self.generation = 1
        self.round = 0
        self.traffic = Traffic()

    def use_context(self, version: int) -> None:
        """Nothing is asked under any."""

    def propose(self, policy: ProposalPolicy) -> Drafted:
        """Begin the next round without a proposal."""
        self.round += 1
        return Miss(MissReason.NO_CONNECTION)

    def skip(self) -> None:
        """Begin the next round."""
        self.round += 1

    def commit(self, outcome: Outcome, accepted: int, tokens: Sequence[int]) -> None:
        """There is no drafter to tell."""

    def close(self) -> None:
        """Nothing to free."""
