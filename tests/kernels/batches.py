"""Batches of rows that quantisers and verifiers get wrong, for all backends at once."""

import numpy as np
from numpy.typing import NDArray

from draftwire.kernels.backend import QRows
from testing.toys.logits import POLICIES as POLICIES
from testing.toys.logits import logits_of as logits_of
from testing.toys.logits import policy as policy
from testing.toys.logits import with_refused as with_refused


def moved(backend, q: QRows) -> QRows:
    """Rows of q from the host to where a backend computes."""
    ids = None if q.ids is None else backend.from_host(q.ids)
    return QRows(q.vocab_size, ids, backend.from_host(q.counts))


def host(backend, q: QRows) -> QRows:
    """Rows of q on the host."""
    ids = None if q.ids is None else backend.to_host(q.ids)
    return QRows(q.vocab_size, ids, backend.to_host(q.counts))


def differing(one: QRows, other: QRows) -> NDArray[np.int64]:
    """Indices of the rows in which two batches of q differ by a bit."""
    differ = (one.counts != other.counts).any(-1)
    if one.ids is not None and other.ids is not None:
        differ = differ | (one.ids != other.ids).any(-1)
    return np.flatnonzero(differ | np.array((one.ids is None) != (other.ids is None)))
