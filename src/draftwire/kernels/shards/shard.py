"""A vocabulary in shards, one a rank, and the few things that ranks tell each other (A25).

Every rank runs the same *steps*, each with its own columns: a generator that yields what the ranks
have to tell each other next and goes on with the answer. It knows no network and no thread;
:func:`drive` runs it over any :class:`Collective`, and the emulator runs those of many ranks in
turn. What crosses is one number, a small histogram or a few candidates a row; never the vocabulary.
One rank, the leader, holds the keys and takes every decision; the others learn it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.split import LEADER as LEADER
from draftwire.exact.split import Shard as Shard
from draftwire.exact.split import even_shards as even_shards
from draftwire.exact.split import shards_at as shards_at
from draftwire.kernels.protocol import OK as OK

if TYPE_CHECKING:
    from numpy.typing import NDArray

Integers: TypeAlias = "NDArray[np.int64]"


class Collective(Protocol):
    """What the ranks of a group can tell each other; arrays of int64, of one shape on all ranks.

    Every rank calls the same method at the same time and gets the same answer, which it leaves as
    it is. Binary64 numbers
    travel as their patterns, so no method ever adds two of them. Errors: an exception of the
    implementation's own where a rank is gone or late; no rank goes on alone after it.
    """

    @property
    def rank(self) -> int:
        """This rank, 0..size-1, in the order of the shards."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def maximum(self, values: Integers) -> Integers:
        """The largest of each element over all ranks."""
        ...

    def sum(self, values: Integers) -> Integers:
        """The sum of each element over all ranks."""
        ...

    def gather(self, values: Integers) -> Integers:
        """The arrays of all ranks, (size, ...), in the order of ranks."""
        ...

    def broadcast(self, values: Integers) -> Integers:
        """The leader's array; of the others only the shape counts."""
        ...


class PointToPoint(Collective, Protocol):
    """A group whose leader can also tell one rank alone; errors as for the collectives."""

    def send(self, values: Integers, rank: int) -> None:
        """As the leader: send an array to one other rank; returns when it is on its way."""
        ...

    def receive(self, size: int) -> Integers:
        """As another rank: the leader's array of so many numbers, (size,)."""
        ...


class Kind(Enum):
    """How the arrays of all ranks become the one that each goes on with."""

    MAXIMUM = "maximum"
    SUM = "sum"
    GATHER = "gather"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """What steps yield: this rank's array (int64, one shape on all ranks) of a collective."""

    kind: Kind
    values: Integers


Result = TypeVar("Result")
Steps: TypeAlias = Generator[Exchange, Integers, Result]


def maximum(values: Integers) -> Steps[Integers]:
    """The largest of each element over all ranks."""
    return (yield Exchange(Kind.MAXIMUM, values))


def total(values: Integers) -> Steps[Integers]:
    """The sum of each element over all ranks."""
    return (yield Exchange(Kind.SUM, values))


def gather(values: Integers) -> Steps[Integers]:
    """The arrays of all ranks, (size, ...), in the order of shards."""
    return (yield Exchange(Kind.GATHER, values))


def broadcast(values: Integers) -> Steps[Integers]:
    """The leader's array; of the others only the shape counts."""
    return (yield Exchange(Kind.BROADCAST, values))


def drive(group: Collective, steps: Steps[Result]) -> Result:
    """Run one rank's steps over a real group."""
    try:
        exchange = next(steps)
        while True:
            exchange = steps.send(_METHODS[exchange.kind](group, exchange.values))
    except StopIteration as finished:
        result: Result = finished.value
        return result


_METHODS: Final = {
    Kind.MAXIMUM: lambda group, values: group.maximum(values),
    Kind.SUM: lambda group, values: group.sum(values),
    Kind.GATHER: lambda group, values: group.gather(values),
    Kind.BROADCAST: lambda group, values: group.broadcast(values),
}


@dataclass(frozen=True, slots=True, eq=False)
class ShardRows:
    """One shard's columns of N rows of q, and what all ranks know of them.

    counts: int32 (N, width). masses: int64 (N, size), the counts on each shard; they sum to 2^24.
    status: int64 (N,), OK or a refusal, the same on all ranks; a refused row has no counts.
    """

    shard: Shard
    counts: NDArray[np.int32]
    masses: Integers
    status: Integers

    def check(self) -> None:
        """Raise the refusal of the first row that has one."""
        for status in self.status.tolist():
            raise_refusal(status)


def raise_refusal(status: int) -> None:
    """Raise what a status stands for; nothing for OK."""
    if status != OK:
        code = RefusalCode(status)
        raise ArithmeticRefusalError(code, f"a row over the shards is refused: {code.name}")


def before(masses: Integers) -> Integers:
    """Mass on the shards before each one: exclusive prefix sums over the last axis."""
    sums: Integers = np.cumsum(masses, axis=-1) - masses
    return sums
