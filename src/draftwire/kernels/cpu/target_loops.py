"""The target's weights on the host: exp64 of A4 over a row of logits, not turned into integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.exact import quantise as exact
from draftwire.kernels.backend import P_CUTOFF
from draftwire.kernels.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOG2E = exact.LOG2E
_LN2_HI = exact.LN2_HI
_LN2_LO = exact.LN2_LO
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11 = exact.COEFFICIENTS
_CUTOFF: Final = P_CUTOFF
_EXPONENT_BIAS: Final = 1023


@compiled
def target_weights(logits: NDArray[np.float32], out: NDArray[np.float64]) -> None:
    """p of a row, not normalised: exp64(logit - largest) (A24).

    logits: binary32 (V,); out: binary64 (V,). A row with NaN or +inf becomes NaN and a row of -inf
    alone becomes 0, so that whoever uses it refuses it by A11.
    """
    largest = -np.inf
    unsound = 0
    for v in range(logits.size):
        logit = np.float64(logits[v])
        unsound += 0 if logit < np.inf else 1  # NaN is not below infinity
        largest = max(largest, logit)
    if unsound or largest == -np.inf:
        out[:] = np.nan if unsound else 0.0
        return
    for v in range(logits.size):
        difference = np.float64(logits[v]) - largest
        inside = difference >= _CUTOFF
        d = difference if inside else 0.0
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
        exponent = np.int64(np.int32(k)) + _EXPONENT_BIAS
        out[v] = s * np.int64(exponent << 52).view(np.float64) if inside else 0.0
