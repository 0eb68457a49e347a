"""The target's weights on the host: exp64 of A4 over a row of logits, not turned into integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from draftwire.kernels.cpu.verify_loops import score_weights, survey_scores

if TYPE_CHECKING:
    from numpy.typing import NDArray


def target_weights(logits: NDArray[np.float32], out: NDArray[np.float64]) -> None:
    """p of a row, not normalised: exp64(logit - largest) (A24).

    logits: binary32 (V,); out: binary64 (V,). A row with NaN or +inf becomes NaN and a row of -inf
    alone becomes 0, so that its use refuses it by A11.
    """
    largest, nan = survey_scores(np.ascontiguousarray(logits))
    if nan or not -np.inf < largest < np.inf:
        out[:] = 0.0 if largest == -np.inf else np.nan
    else:
        score_weights(logits, largest, out)
