"""Philox 4x32-10 in compiled code (A13); equal to :func:`draftwire.exact.words.philox4x32`."""

from __future__ import annotations

from typing import Final

import numpy as np

from draftwire.exact.words import WORD_BITS
from draftwire.kernels.jit import compiled

_U32: Final = np.uint64(0xFFFFFFFF)
_MULTIPLIER_0: Final = np.uint64(0xD2511F53)
_MULTIPLIER_1: Final = np.uint64(0xCD9E8D57)
_WEYL_0: Final = np.uint64(0x9E3779B9)
_WEYL_1: Final = np.uint64(0xBB67AE85)
_HALF: Final = np.uint64(32)
_SHIFT: Final = np.uint64(32 - WORD_BITS)
_WORD: Final = np.int64(WORD_BITS)


@compiled
def first_words(low: int, high: int, generation: int, round_: int, position: int) -> int:
    """The first two words of an address under a key of two u32 lanes, as one integer of 48 bits."""
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
    return int((np.int64(c0 >> _SHIFT) << _WORD) | np.int64(c1 >> _SHIFT))
