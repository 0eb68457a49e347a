"""The verification that the vLLM sampler used before one call judged a step: the peer to beat.

One request after another, one row after another: weights of every row in binary64 (NumPy), then the
decisions from those. Taken over as it was, so that a later change of the kernels is held against
it; every decision is the exact one, as theirs is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import quantise as exact_quantise
from draftwire.exact import verify as exact_verify
from draftwire.exact.words import WORD_BITS, Address, Domain, WordSource
from draftwire.kernels.jit import compiled
from draftwire.kernels.protocol import Round, Verdict
from draftwire.wire.registry import TOTAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from draftwire.kernels.rows import QRow

BLOCK: Final = 512  # terms a block of a sum
UNDECIDED: Final = -1
_ADDITIONS: Final = 600  # in and around a block; see above
_UNIT: Final = 2.0**-53
_SCALE: Final = 2.0**-48  # two words of 24 bits
_INFINITY_PATTERN: Final = 0x7FF << 52  # of binary64
_SPAN: Final = 1 << 2 * WORD_BITS  # values of the first two words
_residuals: Final[dict[int, NDArray[np.float64]]] = {}  # one working row, as it was


class RowByRow:
    """In the place of kernels, so far as ``judge`` needs them."""

    name = "row by row"

    def verify(self, scores: Any, rounds: Sequence[Round]) -> list[Verdict]:
        """Judge rounds that have drafts, a row behind them and p in each; scores on the host."""
        host = scores if isinstance(scores, np.ndarray) else scores.cpu().numpy()
        return [_judged(host, each) for each in rounds]


def _judged(scores: NDArray[np.float32], each: Round) -> Verdict:
    depth = len(each.tokens)
    rows = np.empty((depth + 1, scores.shape[1]))
    for row, score in zip(rows, scores[each.first_row :], strict=False):
        row[:] = _weights_of(score)
    return Verdict(*_verify(rows, each))


def _weights_of(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """exp(score - largest) in binary64 (A17); NaN, +infinity and no mass are refused."""
    largest = float(scores.max())
    if not np.isfinite(largest):
        raise ArithmeticRefusalError(RefusalCode.NON_FINITE, "a row is no distribution")
    weights = scores.astype(np.float64)
    weights -= largest
    return np.exp(weights, out=weights)


def _verify(rows: NDArray[np.float64], each: Round) -> tuple[int, int]:
    """Return how many drafts are accepted and the token after them (A18-A20)."""
    for index, (token, q) in enumerate(zip(each.tokens, each.rows, strict=True)):
        total, _ = _mass_of(rows[index])
        if not _accept(rows[index], total, q, token, each, index):
            return index, _correction(rows[index], total, q, each, index)
    depth = len(each.tokens)
    return depth, _target(rows[depth], each, depth)


def _address(each: Round, index: int, domain: Domain) -> Address:
    return Address(each.generation, each.round, each.first_position + index, domain)


def _mass_of(row: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Sum of a row of weights that A11 allows, and the sums of its blocks."""
    least, largest = scan(row.view(np.int64))
    if largest >= _INFINITY_PATTERN or (least < 0 and not np.isfinite(row).all()):
        raise ArithmeticRefusalError(RefusalCode.NON_FINITE, "a weight is NaN or infinite")
    sums = np.empty(-(-row.size // BLOCK))
    return block_sums(row, sums), sums


def _accept(
    row: NDArray[np.float64], total: float, q: QRow, token: int, each: Round, index: int
) -> bool:
    weight, count = float(row[token]), q.of(token)
    if weight == 0:
        return False
    address = _address(each, index, Domain.ACCEPTANCE)
    threshold = weight * (float(TOTAL) * _SPAN) / (count * total)
    margin = threshold * bound_of(row.size)
    if threshold - margin >= _SPAN:
        return True
    first = _first(each.words, address)
    if first + 1 <= threshold - margin:
        return True
    if first > 0 and first >= threshold + margin:
        return False
    return exact_verify.accept(_exact(row), q.exact(), token, each.words.words(address))


def _correction(row: NDArray[np.float64], total: float, q: QRow, each: Round, index: int) -> int:
    if row.size not in _residuals:
        _residuals[row.size] = np.empty(row.size)
    residual = _residuals[row.size]
    if q.ids is None:
        residual_dense(row, TOTAL / total, q.counts, residual)
    else:
        residual_sparse(row, TOTAL / total, q.ids, q.counts, residual)
    sums = np.empty(-(-row.size // BLOCK))
    left = block_sums(residual, sums)
    address = _address(each, index, Domain.CORRECTION)
    slack = TOTAL * bound_of(row.size)
    token = find(residual, sums, left, _first(each.words, address), slack)
    if token != UNDECIDED:
        return token
    return exact_verify.correction(_exact(row), q.exact(), each.words.words(address))


def _target(row: NDArray[np.float64], each: Round, index: int) -> int:
    total, sums = _mass_of(row)
    address = _address(each, index, Domain.BONUS)
    first = _first(each.words, address)
    token = find(row, sums, total, first, total * bound_of(row.size))
    return (
        token if token != UNDECIDED else exact_verify.target(_exact(row), each.words.words(address))
    )


def _first(words: WordSource, address: Address) -> int:
    high, low = islice(words.words(address), 2)
    return high << WORD_BITS | low


def _exact(row: NDArray[np.float64]) -> list[int]:
    return exact_quantise.integers(row.tolist())


# The loops, each with the error bound of the analysis in draftwire.kernels.cpu.verify_loops.


def bound_of(size: int) -> float:
    """The bound, relative to the whole mass, that covers every sum over ``size`` weights."""
    return 4.0 * (-(-size // BLOCK) + _ADDITIONS + 4) * _UNIT


@compiled
def scan(row: NDArray[np.int64]) -> tuple[int, int]:
    """Least and largest binary64 pattern of a row, as signed integers.

    Without a sign the patterns are in the order of the numbers, infinity and NaN last; a set sign
    makes a pattern negative.
    """
    least, largest = row[0], row[0]
    for i in range(row.size):
        least = min(least, row[i])
        largest = max(largest, row[i])
    return least, largest


@compiled
def block_sums(row: NDArray[np.float64], sums: NDArray[np.float64]) -> float:
    """Sums of blocks of 512 weights into ``sums`` (ceil(V / 512),); returns their sum."""
    total = 0.0
    for block in range(sums.size):
        start = block * BLOCK
        end = min(start + BLOCK, row.size)
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
        i = start
        while i + 8 <= end:
            a0 += row[i]
            a1 += row[i + 1]
            a2 += row[i + 2]
            a3 += row[i + 3]
            a4 += row[i + 4]
            a5 += row[i + 5]
            a6 += row[i + 6]
            a7 += row[i + 7]
            i += 8
        while i < end:
            a0 += row[i]
            i += 1
        mass = ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))
        sums[block] = mass
        total += mass
    return total


@compiled
def residual_dense(
    row: NDArray[np.float64], scale: float, counts: NDArray[np.int32], out: NDArray[np.float64]
) -> None:
    """max(p - q, 0) in tickets over the full vocabulary, q dense (A19); scale = M / A."""
    for v in range(row.size):
        difference = row[v] * scale - counts[v]
        out[v] = difference if difference > 0.0 else 0.0


@compiled
def residual_sparse(
    row: NDArray[np.float64],
    scale: float,
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    out: NDArray[np.float64],
) -> None:
    """max(p - q, 0) in tickets over the full vocabulary, q zero outside ``ids`` (A19)."""
    for v in range(row.size):
        out[v] = row[v] * scale
    for i in range(ids.size):
        difference = out[ids[i]] - counts[i]
        out[ids[i]] = difference if difference > 0.0 else 0.0


@compiled
def find(
    values: NDArray[np.float64], sums: NDArray[np.float64], total: float, first: int, slack: float
) -> int:
    """The id whose interval of the cumulative ``values`` surely holds U * their sum, or UNDECIDED.

    first: the first 48 bits of U, so U lies in [first, first + 1) / 2^48; slack: how far any
    computed prefix, and ``total``, may be from the true one.
    """
    low = first * _SCALE * (total - slack)
    high = (first + 1) * _SCALE * (total + slack)
    middle = first * _SCALE * total
    before = 0.0
    block = 0
    while block < sums.size and before + sums[block] <= middle:
        before += sums[block]
        block += 1
    for v in range(block * BLOCK, min((block + 1) * BLOCK, values.size)):
        after = before + values[v]
        if after > middle:
            return v if before + slack <= low and high <= after - slack else UNDECIDED
        before = after
    return UNDECIDED
