"""A vocabulary cut into shards, one a rank (A25)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from draftwire.errors import ConfigurationError

LEADER: Final = 0  # the rank that owns draws, acceptance, deadlines and fallback


@dataclass(frozen=True, slots=True)
class Shard:
    """The ids ``begin``..``end - 1`` of a vocabulary, which rank ``rank`` of ``size`` owns.

    It may own none. Errors: ConfigurationError for a range that does not lie in the vocabulary.
    """

    vocab_size: int
    begin: int
    end: int
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        """Refuse a range outside the vocabulary."""
        inside = 0 <= self.begin <= self.end <= self.vocab_size and 0 <= self.rank < self.size
        if not inside:
            raise ConfigurationError(
                f"{self.begin}..{self.end} is no shard of {self.vocab_size} ids"
            )

    @property
    def leads(self) -> bool:
        """Whether its rank is the leader."""
        return self.rank == LEADER

    @property
    def width(self) -> int:
        """How many ids it owns."""
        return self.end - self.begin

    def owns(self, token: int) -> bool:
        """Whether a global id is one of its own."""
        return self.begin <= token < self.end


def even_shards(vocab_size: int, count: int) -> tuple[Shard, ...]:
    """``count`` shards of ceil(V / count) ids each, the last ones shorter or empty."""
    if count < 1:
        raise ConfigurationError(f"a vocabulary has 1 shard or more, not {count}")
    width = -(-vocab_size // count)
    return shards_at(vocab_size, [min(width * index, vocab_size) for index in range(1, count)])


def shards_at(vocab_size: int, cuts: Sequence[int]) -> tuple[Shard, ...]:
    """The shards between ascending cuts; two equal cuts make an empty shard."""
    edges = [0, *cuts, vocab_size]
    return tuple(
        Shard(vocab_size, begin, end, rank, len(cuts) + 1)
        for rank, (begin, end) in enumerate(pairwise(edges))
    )
