"""Whether every token of a proposal is the one that its q and its random word draw (A22)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from draftwire.kernels.cpu.quantise_loops import sample_inverse_cdf
from draftwire.kernels.jit import compiled
from draftwire.kernels.rows import LINE_HEAD

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def first_audit_failure(lines: NDArray[np.int32], words: NDArray[np.int64]) -> int:
    """The first row whose token is not the one that its word draws (A22), -1 if there is none.

    lines: of :class:`~draftwire.kernels.rows.SparseRows`; words: of 24 bits, one a row. Every row
    is read to its end, whatever was drawn.
    """
    support = lines.shape[1] - LINE_HEAD >> 1
    wrong = -1
    for row in range(len(words) - 1, -1, -1):
        line = lines[row]
        begin = LINE_HEAD + support
        at = sample_inverse_cdf(line[begin : begin + line[0]], words[row])
        if at < 0 or line[LINE_HEAD + at] != line[1]:
            wrong = row
    return wrong
