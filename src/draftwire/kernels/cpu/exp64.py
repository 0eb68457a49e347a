"""exp64 of A4, the one exponential of the CPU's loops: for counts and for p."""

from __future__ import annotations

from typing import Final

import numpy as np

from draftwire.exact import quantise as exact
from draftwire.kernels.jit import compiled

_LOG2E = exact.LOG2E
_LN2_HI = exact.LN2_HI
_LN2_LO = exact.LN2_LO
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11 = exact.COEFFICIENTS
_EXPONENT_BIAS: Final = 1023


@compiled
def exp64(d: float, bits: int) -> float:
    """Return exp64(d) * 2^bits (A4); d: at most 0 and above the cutoff of its caller.

    Exact in its last step: the power of two is put together from its exponent. Inlined into the
    loops that call it, which become vector instructions.
    """
    k = np.floor(d * _LOG2E + 0.5)
    r = (d - k * _LN2_HI) - k * _LN2_LO
    s = _C11 * r + _C10
    s = s * r + _C9
    s = s * r + _C8
    s = s * r + _C7
    s = s * r + _C6
    s = s * r + _C5
    s = s * r + _C4
    s = s * r + _C3
    s = s * r + _C2
    s = s * r + _C1
    s = s * r + _C0
    exponent = np.int64(np.int32(k)) + (_EXPONENT_BIAS + bits)
    value: float = s * np.int64(exponent << 52).view(np.float64)
    return value
