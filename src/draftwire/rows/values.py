"""Counts of 2^24 as binary32 numbers: which bits are one, and why others are none (P14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from draftwire.errors import ProtocolErrorCode
from draftwire.kernels.jit import compiled
from draftwire.wire.registry import TOTAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

Counts: TypeAlias = "tuple[NDArray[np.int32] | None, NDArray[np.int32]]"
"""Global ids (None = one count for each id of the shard) and their counts."""

# Plain integers, because compiled loops know no enumerations.
OK: Final = 0
NON_FINITE_Q: Final = int(ProtocolErrorCode.NON_FINITE_Q)
NEGATIVE_Q: Final = int(ProtocolErrorCode.NEGATIVE_Q)
NEGATIVE_ZERO_Q: Final = int(ProtocolErrorCode.NEGATIVE_ZERO_Q)
NON_DYADIC_Q: Final = int(ProtocolErrorCode.NON_DYADIC_Q)
WRONG_MASS: Final = int(ProtocolErrorCode.WRONG_MASS)
ZERO_Q_AT_TOKEN: Final = int(ProtocolErrorCode.ZERO_Q_AT_TOKEN)

ONE: Final = 0x3F800000  # the bits of binary32 1.0
SCALE: Final = np.float32(TOTAL)
UNIT: Final = np.float32(1 / TOTAL)
_INFINITY: Final = 0x7F800000


@compiled
def value_code(bits: int) -> int:
    """Why the binary32 number with these bits (as int32) is no count of 2^24; 0 if it is one.

    A number above 1 is one: the mass will be wrong, and is said to be.
    """
    if bits & _INFINITY == _INFINITY:
        return NON_FINITE_Q
    if bits < 0:
        return NEGATIVE_ZERO_Q if bits & 0x7FFFFFFF == 0 else NEGATIVE_Q
    if bits == 0 or bits >= ONE:
        return OK
    below_unit = 126 - (bits >> 23)  # significand bits that are less than 2^-24
    if below_unit > 23 or bits & ((1 << below_unit) - 1):
        return NON_DYADIC_Q
    return OK


@compiled
def mass_code(mass: int, whole: bool, held: bool) -> int:
    """Why a row with counts of this mass is no q; 0 if it may be one.

    whole: whether it is all of the vocabulary; a shard alone holds at most 2^24, and the token's
    count may lie elsewhere. held: whether the token has a count here.
    """
    if mass != TOTAL if whole else mass > TOTAL:
        return WRONG_MASS
    return OK if held or not whole else ZERO_Q_AT_TOKEN
