"""Exact masses between ranks, for the rare decision that binary64 with its bound cannot take.

A binary64 number is a whole number of 2^-1074, so the sum of a shard's weights is one integer, and
so is its residual. Each rank hands over that integer alone, at a fixed size; the leader decides as
:mod:`draftwire.exact.shards` does, and the shard's own ids are searched where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.exact import shards as exact
from draftwire.exact.decide import Undecided, begin, narrow
from draftwire.exact.words import WORD_BITS, Address, WordSource
from draftwire.kernels.shards.shard import Integers, Shard, Steps, broadcast, gather, maximum

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCALE_BITS: Final = 1074  # the least binary64 number is 2^-1074
LIMBS: Final = 36  # of 64 bits: sum(a) < 2^(1024 + 1074 + 24), times M^2 and signed below 2^2304
_BYTES: Final = 8 * LIMBS
_WORDS: Final = 8  # words of U a time, while a shard looks for its id


def integers(row: NDArray[np.float64]) -> list[int]:
    """Binary64 weights as whole numbers of 2^-1074: the same scale on every shard."""
    found = []
    for weight in row.tolist():
        numerator, denominator = weight.as_integer_ratio()
        found.append(numerator << (SCALE_BITS + 1 - denominator.bit_length()))
    return found


def to_limbs(mass: int) -> Integers:
    """An integer of 0..2^2303 as int64 (LIMBS,), the least significant first."""
    return np.frombuffer(mass.to_bytes(_BYTES, "little"), np.int64)


def from_limbs(limbs: Integers) -> int:
    """The integer of :func:`to_limbs`."""
    return int.from_bytes(limbs.tobytes(), "little")


def masses_of(own: Sequence[int]) -> Steps[list[list[int]]]:
    """The exact masses of all ranks: for each of ``own``, the list over ranks."""
    limbs = np.array([to_limbs(mass) for mass in own], np.int64).reshape(len(own), LIMBS)
    gathered = yield from gather(limbs)
    return [[from_limbs(rank[index]) for rank in gathered] for index in range(len(own))]


def choose(
    shard: Shard, own: Sequence[int], source: WordSource | None, address: Address
) -> Steps[int | None]:
    """The place, on the one rank that owns it, of the id that U falls on (A29); None elsewhere.

    own: this rank's exact weights, on a scale that all ranks share. Their sum over the ranks is
    above zero. source: the leader's. Law: each id with its weight over the whole mass, exactly.
    """
    masses = (yield from masses_of([sum(own)]))[0]
    plan = np.zeros(1, np.int64)
    stream: Iterator[int] = iter(())
    if shard.leads and source is not None:
        plan[0] = exact.pick(masses, source, address)
        stream = source.words(address)
    chosen = int((yield from broadcast(plan))[0])
    state: int | Undecided | None = None
    if shard.rank == chosen:
        state = begin(exact.edges_within(own, sum(masses[:chosen])), sum(masses))
    undecided = True
    while undecided:
        words = np.zeros(_WORDS, np.int64)
        if shard.leads:
            words[:] = list(islice(stream, _WORDS))
        for word in (yield from broadcast(words)).tolist():
            if isinstance(state, Undecided):
                state = narrow(state, word, WORD_BITS)
        mine = np.array([isinstance(state, Undecided)], np.int64)
        undecided = bool((yield from maximum(mine))[0])
    return state if isinstance(state, int) else None
