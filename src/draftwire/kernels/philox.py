"""Philox 4x32-10 over arrays: the words of many addresses at once (A13).

Written for anything with the operators of an int64 array, NumPy's and torch's alike, so that both
run the same steps; products of 32 by 32 bits are put together from halves, and nothing overflows.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftwire.exact.words import WORD_BITS

_U32: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
ROUNDS: Final = 10

Integers = TypeVar("Integers", bound=Any)


def philox_block(
    counter: tuple[Integers, Integers, Integers, Integers], key: tuple[Integers, Integers]
) -> tuple[Integers, Integers, Integers, Integers]:
    """One block of four lanes for each element. All int64 arrays of one shape, values of u32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high_0, low_0 = _product(c0, _MULTIPLIERS[0])
        high_1, low_1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0 = (k0 + _WEYL[0]) & _U32
        k1 = (k1 + _WEYL[1]) & _U32
    return c0, c1, c2, c3


def first_of(words: Integers) -> Integers:
    """The first 48 bits of U from two words a row. words: int64 (N, 2); returns int64 (N,)."""
    first: Integers = (words[:, 0] << WORD_BITS) | words[:, 1]
    return first


def step_of(depth: int) -> list[int]:
    """How far each U of a round is behind the first draft: acceptance, correction, then bonus."""
    return [*range(depth), *range(depth), depth]


def domain_of(depth: int) -> list[int]:
    """The domain of each U of a round: 0 acceptance, 1 correction, 2 bonus."""
    return [0] * depth + [1] * depth + [2]


def philox_words(keys: NDArray[Any], addresses: NDArray[Any], count: int) -> NDArray[Any]:
    """The first ``count`` words of each address; see ``Backend.words``."""
    counter = (np.zeros(len(addresses), np.int64), *addresses[:, ::-1].T)
    lanes = philox_block(counter, (keys[:, 0], keys[:, 1]))
    return np.stack(lanes[:count], axis=1) >> (32 - WORD_BITS)


def _product(value: Integers, multiplier: int) -> tuple[Integers, Integers]:
    """High and low 32 bits of a product of two u32."""
    upper = (value >> 16) * multiplier
    lower = (value & 0xFFFF) * multiplier
    middle = upper + (lower >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (lower & 0xFFFF)
