"""First words of many positions, or of one U, in one compiled call; equal to ``exact.words``."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.words import (
    WORD_BITS,
    Address,
    Domain,
    KeyedWords,
    RequestKey,
    WordSource,
)
from draftwire.kernels.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

_U32: Final = np.uint64(0xFFFFFFFF)
_MULTIPLIER_0: Final = np.uint64(0xD2511F53)
_MULTIPLIER_1: Final = np.uint64(0xCD9E8D57)
_WEYL_0: Final = np.uint64(0x9E3779B9)
_WEYL_1: Final = np.uint64(0xBB67AE85)
_HALF: Final = np.uint64(32)
_SHIFT: Final = np.uint64(32 - WORD_BITS)


def first_words(
    proposal_key: int, generation: int, round_: int, first_position: int, count: int
) -> list[int]:
    """As :func:`proposal_words`, as Python's integers."""
    words: list[int] = proposal_words(
        proposal_key, generation, round_, first_position, count
    ).tolist()
    return words


def proposal_words(
    proposal_key: int, generation: int, round_: int, first_position: int, count: int
) -> NDArray[np.int64]:
    """Word number 0 of ``count`` positions from ``first_position`` on, domain PROPOSAL (A13).

    Returns int64 (count,). Errors: ArithmeticRefusalError OUT_OF_RANGE for a key over 64 bits or an
    address over 32.
    """
    words = np.empty(count, np.int64)
    low, high = halves(proposal_key, generation, round_, first_position, count)
    fill_words(low, high, generation, round_, first_position, words)
    return words


def halves(
    proposal_key: int, generation: int, round_: int, first_position: int, count: int
) -> tuple[int, int]:
    """The low and the high half of a key, which an int64 holds, if it and all addresses may be.

    Errors: as :func:`proposal_words`.
    """
    last = first_position + (count or 1) - 1
    if (generation | round_ | first_position | last) >> 32 or proposal_key >> 64:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, "an address holds three u32, and a proposal key is a u64"
        )
    return proposal_key & 0xFFFFFFFF, proposal_key >> 32


@compiled
def fill_words(
    low: int, high: int, generation: int, round_: int, first_position: int, words: NDArray[np.int64]
) -> None:
    """Word number 0 of each position from ``first_position`` on, into ``words``."""
    for index in range(words.size):
        lane, _ = _lanes(low, high, generation, round_, first_position + index)
        words[index] = np.int64(lane >> _SHIFT)


def first_bits(
    source: WordSource, generation: int, round_: int, position: int, domain: Domain
) -> int:
    """The first 48 bits of U at an address, of its first two words (A15).

    Errors: ArithmeticRefusalError OUT_OF_RANGE for an address over 32 bits.
    """
    fits = (generation | round_ | position) >> 32 == 0
    if fits and isinstance(source, KeyedWords) and source.bits == WORD_BITS:
        low, high = source.key(domain)
        return int(_first_bits(low, high, generation, round_, position))
    upper, lower = islice(source.words(Address(generation, round_, position, domain)), 2)
    return upper << WORD_BITS | lower


def prepare() -> None:
    """Compile what reads the words of a round, or load it from the cache."""
    first_bits(KeyedWords(RequestKey(0)), 1, 1, 0, Domain.TARGET_ONLY)


@compiled
def _first_bits(low: int, high: int, generation: int, round_: int, position: int) -> int:
    lane_0, lane_1 = _lanes(low, high, generation, round_, position)
    return int(np.int64(lane_0 >> _SHIFT) << WORD_BITS | np.int64(lane_1 >> _SHIFT))


@compiled
def _lanes(
    low: int, high: int, generation: int, round_: int, position: int
) -> tuple[np.uint64, np.uint64]:
    """The first two lanes of the first block at an address."""
    c0, c1 = np.uint64(0), np.uint64(position)
    c2, c3 = np.uint64(round_), np.uint64(generation)
    k0, k1 = np.uint64(low), np.uint64(high)
    for _ in range(10):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0 = (product_1 >> _HALF) ^ c1 ^ k0
        c1 = product_1 & _U32
        c2 = (product_0 >> _HALF) ^ c3 ^ k1
        c3 = product_0 & _U32
        k0 = (k0 + _WEYL_0) & _U32
        k1 = (k1 + _WEYL_1) & _U32
    return c0, c1
