"""Batches of rows that quantisers and verifiers get wrong, for all kernels at once."""

import numpy as np
from numpy.typing import NDArray

from draftwire.kernels.protocol import QRows
from testing.toys.logits import POLICIES as POLICIES
from testing.toys.logits import logits_of as logits_of
from testing.toys.logits import policy as policy
from testing.toys.logits import with_refused as with_refused


def host(q: QRows) -> QRows:
    """Arrays that share the memory of tensors of the CPU."""
    return QRows(q.vocab_size, None if q.ids is None else np.asarray(q.ids), np.asarray(q.counts))


def moved(kernels, q: QRows) -> QRows:
    """Rows of q from the host to where kernels compute."""
    ids = None if q.ids is None else kernels.from_host(q.ids)
    return QRows(q.vocab_size, ids, kernels.from_host(q.counts))


def differing(one: QRows, other: QRows) -> NDArray[np.int64]:
    """Indices of the rows in which two batches of q differ by a bit."""
    differ = (one.counts != other.counts).any(-1)
    if one.ids is not None and other.ids is not None:
        differ = differ | (one.ids != other.ids).any(-1)
    return np.flatnonzero(differ | np.array((one.ids is None) != (other.ids is None)))
