"""Who owns what of p and q where the target runs on several ranks, and what crosses which wire.

Source: origin, "Size and critical path" and "Sparse support and vocabulary-sharded TP2 follow-up".
Bytes are those of dense q's alone, without headers; they are arithmetic, not measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from draftwire.exact.split import even_shards
from draftwire.wire.agreement import q_bytes
from draftwire.wire.registry import Layout


class Parallelism(Enum):
    """What a rank of the target has of a round."""

    REQUESTS = "request-sharded"  # whole rows of some requests
    VOCABULARY = "vocabulary-sharded"  # its columns of all requests


class Links(Enum):
    """How q comes to the ranks that own it."""

    LEADER = "leader link, then broadcast"  # one connection; rank 0 validates and passes it on
    RANKS = "rank-to-rank links"  # each rank's own: its shards (P29) or requests


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """One way to run over ``ranks`` ranks. ``name`` is how it is called everywhere."""

    parallelism: Parallelism
    links: Links
    ranks: int = 2

    @property
    def name(self) -> str:
        """Parallelism and links in words."""
        return f"{self.parallelism.value}, {self.links.value}"

    def link_bytes(self, vocab_size: int, depth: int, requests: int) -> int:
        """Bytes of q on the busiest link between drafter and target."""
        row = self._row_bytes(vocab_size)
        if self.links is Links.RANKS and self.parallelism is Parallelism.VOCABULARY:
            row = self._row_bytes(even_shards(vocab_size, self.ranks)[0].width)
        elif self.links is Links.RANKS:
            requests = -(-requests // self.ranks)
        return row * depth * requests

    def fabric_bytes(self, vocab_size: int, depth: int, requests: int) -> int:
        """Bytes of q that rank 0 passes on to each other rank: a full copy, or nothing."""
        if self.links is Links.RANKS:
            return 0
        return self._row_bytes(vocab_size) * depth * requests

    @staticmethod
    def _row_bytes(width: int) -> int:
        return q_bytes(Layout.DENSE, width)


SHARDING_PLANS = tuple(
    ShardingPlan(parallelism, links) for links in Links for parallelism in Parallelism
)
"""Both kinds of parallelism over both kinds of link, for two ranks."""
