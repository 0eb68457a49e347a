"""The arithmetic on one CPU core, a row a call: quantise and draw; equal to ``exact``.

Counts are made in integers (:mod:`draftwire.kernels.cpu.quantise_loops`). The loops release the
interpreter lock, and nothing is kept between calls. Batches of rows and verification stand in
:mod:`draftwire.kernels.cpu.kernels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.kernels.cpu import quantise_loops as cpu_quantise
from draftwire.kernels.cpu import select_loops as cpu_select
from draftwire.kernels.refusals import check_policy
from draftwire.kernels.rows import QRow
from draftwire.kernels.workspace import Workspace
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_VOCABULARY, TOTAL, WEIGHT_BITS, Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["draw", "prepare", "quantise"]

_workspace: Final = Workspace()


def quantise(
    logits: NDArray[np.float32], policy: ProposalPolicy, out: NDArray[np.int32] | None = None
) -> QRow:
    """q of a row of logits under the policy, as counts (A1-A10).

    logits: binary32 in machine order, contiguous, (V,), 1 <= V <= 2^24; left as they are. Returns a
    dense row for Layout.DENSE, its counts in ``out`` (V,) if given, and the support alone for the
    others.
    Errors: ArithmeticRefusalError NON_FINITE, ZERO_MASS, OUT_OF_RANGE (array, policy).
    """
    check_policy(policy)
    _check_array("logits", logits, np.dtype(np.float32))
    bits = logits.view(np.int32)
    if out is not None:
        _check_array("out", out, np.dtype(np.int32), logits.size)
    maxima = np.empty(-(-logits.size // cpu_quantise.BLOCK), np.int32)
    largest = _largest(bits, maxima)
    if policy.temperature == 0:
        greedy = np.array([np.argmax(logits)])
        return _row(policy, logits.size, greedy, np.array([TOTAL], np.int32), out)
    kept = _preselect(bits, maxima, policy)
    scored = logits if kept is None else logits[kept]
    weights = _workspace.get("weights", scored.size)
    mass = cpu_quantise.integer_weights(scored, largest, 1.0 / policy.temperature, weights)
    if policy.top_p < TOTAL:
        needed = -(-policy.top_p * mass // TOTAL)  # Python integers: no overflow
        end = cpu_select.heaviest_until(
            weights, needed, WEIGHT_BITS + 1, _workspace.get("left", weights.size)
        )
        mass = cpu_quantise.cut(weights, *end)
    if policy.min_p:
        least = policy.min_p << WEIGHT_BITS - 24  # w * 2^24 >= P * 2^38
        mass = cpu_quantise.cut(weights, least, weights.size)
    if policy.support:
        ids = _workspace.get("ids", weights.size)
        ids = ids[: cpu_quantise.positive(weights, ids)]
        if ids.size > policy.support:
            places = _keep_largest(scored.view(np.int32), ids, policy.support)
            kept = places if kept is None else kept[places]
            weights = weights[places]
            mass = int(weights.sum())
    whole = policy.layout is Layout.DENSE and kept is None
    counts = out if whole and out is not None else np.empty(weights.size, np.int32)
    _allocate(weights, mass, counts)
    return _row(policy, logits.size, kept, counts, out)


def draw(row: QRow, word: int) -> int:
    """The token of a word: the first id whose cumulative count is above it (A16).

    word: 24 bits. Law, for a uniform word: token v with probability counts[v] / 2^24 exactly.
    Errors: ArithmeticRefusalError OUT_OF_RANGE (word), INCONSISTENT_ALLOCATION (counts under 2^24).
    """
    if not 0 <= word < TOTAL:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, f"{word} is no 24-bit word")
    at = cpu_quantise.sample_inverse_cdf(row.counts, word)
    if at < 0:
        raise ArithmeticRefusalError(
            RefusalCode.INCONSISTENT_ALLOCATION, f"the counts do not sum to {TOTAL}"
        )
    return at if row.ids is None else int(row.ids[at])


def prepare() -> None:
    """Compile every loop, or load it from the cache, so that no round pays for it."""
    logits = np.linspace(-3, 3, 400, dtype=np.float32)
    dense = ProposalPolicy(Layout.DENSE, 1, 1.0)
    whole = quantise(logits, dense)
    nucleus = ProposalPolicy(Layout.SPARSE, 1, 1.0, support=2, top_p=TOTAL // 2)
    few = quantise(logits, nucleus)
    quantise(logits, ProposalPolicy(Layout.SPARSE, 1, 1.0, support=1))
    for row in (whole, few):
        draw(row, TOTAL - 1)


def _check_array(
    name: str, array: NDArray[np.generic], dtype: np.dtype[np.generic], size: int | None = None
) -> None:
    fits = array.dtype == dtype and array.ndim == 1 and array.flags.c_contiguous
    fits = fits and size in (None, array.size)
    if not fits or not 1 <= array.size <= MAX_VOCABULARY:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE,
            f"{name} must be one contiguous row of {dtype}, not {array.dtype} {array.shape}",
        )


def _largest(bits: NDArray[np.int32], maxima: NDArray[np.int32]) -> float:
    """The largest logit of a row that A1 allows; fills ``maxima``."""
    least, largest = cpu_quantise.block_maxima(bits, maxima)
    if largest >= cpu_quantise.KEY_INFINITY or least < cpu_quantise.KEY_MINUS_INFINITY:
        raise ArithmeticRefusalError(RefusalCode.NON_FINITE, "a logit is NaN or +infinity")
    if largest == cpu_quantise.KEY_MINUS_INFINITY:
        raise ArithmeticRefusalError(RefusalCode.ZERO_MASS, "every logit is -infinity")
    pattern = largest if largest >= 0 else largest ^ 0x7FFFFFFF
    return float(np.int32(pattern).view(np.float32))


def _preselect(
    bits: NDArray[np.int32], maxima: NDArray[np.int32], policy: ProposalPolicy
) -> NDArray[np.int64] | None:
    """Ids chosen before any weight is made, ascending: A5, or A8 where nothing comes before it.

    An id with w = 0 may be among them; it drops out with its count. It takes no other's place: next
    to w = 1, at d = -38 ln 2, A4 has a remainder r near 0 and is monotone.
    """
    count = policy.top_k
    if not count and policy.top_p == TOTAL and not policy.min_p:
        count = policy.support
    if not 0 < count < bits.size:
        return None
    floor = cpu_quantise.KEY_MINUS_INFINITY
    if count <= maxima.size // 2:
        # At least ``count`` logits reach the count-th largest maximum of a block.
        keys = maxima.astype(np.int64) + cpu_quantise.KEY_OFFSET
        floor = cpu_select.kth_largest(keys, count, 32, keys.copy())[0] - cpu_quantise.KEY_OFFSET
        floor = -1 if floor == 0 else floor  # -0.0, key -1, is no less than +0.0, key 0
    ids = _workspace.get("ids", bits.size)
    ids = ids[: cpu_quantise.candidates(bits, maxima, floor, ids)]
    return _keep_largest(bits, ids, count)


def _keep_largest(bits: NDArray[np.int32], ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Of ascending ``ids`` the ``count`` with the largest logit, ties to the lowest; ascending."""
    keys = _workspace.get("keys", ids.size)
    cpu_quantise.order_keys(bits, ids, keys)
    threshold, ties, _ = cpu_select.kth_largest(keys, count, 32, _workspace.get("left", ids.size))
    chosen: NDArray[np.int64] = ids[cpu_select.first_of_threshold(keys, threshold, ties, count)]
    return chosen


def _allocate(weights: NDArray[np.int64], mass: int, counts: NDArray[np.int32]) -> None:
    """A9 into ``counts``; the weights are used up."""
    remainders = _workspace.get("remainders", weights.size)
    left, positive = cpu_quantise.floor_counts(weights, mass, counts, remainders)
    given = 0
    if 0 < left < positive:
        width = mass.bit_length()
        threshold, ties, equal = cpu_select.kth_largest(remainders, left, width, weights)
        given = cpu_quantise.assign_remainders(counts, remainders, threshold, ties, equal)
    if given != left:
        raise ArithmeticRefusalError(
            RefusalCode.INCONSISTENT_ALLOCATION, f"{left} counts left over, {given} assigned"
        )


def _row(
    policy: ProposalPolicy,
    size: int,
    ids: NDArray[np.int64] | None,
    counts: NDArray[np.int32],
    out: NDArray[np.int32] | None,
) -> QRow:
    """The row of a layout from counts at ``ids`` (None: at all ids)."""
    if policy.layout is Layout.DENSE:
        if ids is None:
            return QRow(size, None, counts)
        dense = np.empty(size, np.int32) if out is None else out
        dense[:] = 0
        dense[ids] = counts
        return QRow(size, None, dense)
    used = np.flatnonzero(counts)
    support = used if ids is None else ids[used]
    return QRow(size, support.astype(np.int32), counts[used])
