"""The arithmetic on one CPU core: quantise, draw, audit, verify; equal to ``exact`` bit for bit.

Counts are made in integers (:mod:`draftwire.kernels.cpu.quantise_loops`). Verification works in
binary64 with a proven bound (:mod:`draftwire.kernels.cpu.verify_loops`), and what lies inside it
is decided by :mod:`draftwire.exact` on the exact rational value of the weights: every decision is
exact's. The loops release the interpreter lock, and nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import quantise as exact_quantise
from draftwire.exact import verify as exact_verify
from draftwire.exact.verify import Verdict
from draftwire.exact.words import WORD_BITS, Address, Domain, KeyedWords, RequestKey, WordSource
from draftwire.kernels.cpu import quantise_loops as cpu_quantise
from draftwire.kernels.cpu import select_loops as cpu_select
from draftwire.kernels.cpu import verify_loops as cpu_verify
from draftwire.kernels.rows import QRow
from draftwire.kernels.workspace import Workspace
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_VOCABULARY, TOTAL, WEIGHT_BITS, WITH_SUPPORT, Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["audit", "draw", "prepare", "quantise", "target", "verify", "weights_of"]

_SPAN: Final = 1 << 2 * WORD_BITS  # values of the first two words
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
    _check_policy(policy)
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


def audit(row: QRow, token: int, word: int) -> bool:
    """Whether ``token`` is the one that ``word`` draws from ``row`` (A22)."""
    return draw(row, word) == token


def weights_of(scores: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The target's p, not normalised: exp(score - largest) in binary64 (A17).

    scores: binary32 or binary64 (V,), after every processor, temperature included; -inf is p = 0.
    Errors: ArithmeticRefusalError NON_FINITE (NaN, +inf), ZERO_MASS (-inf alone), OUT_OF_RANGE.
    """
    if scores.dtype not in (np.float32, np.float64) or scores.ndim != 1 or scores.size == 0:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"no row of scores: {scores.dtype} {scores.shape}"
        )
    largest = float(scores.max())  # NaN if any is
    if np.isnan(largest) or largest == np.inf:
        raise ArithmeticRefusalError(RefusalCode.NON_FINITE, "a score is NaN or +infinity")
    if largest == -np.inf:
        raise ArithmeticRefusalError(RefusalCode.ZERO_MASS, "every score is -infinity")
    weights = scores.astype(np.float64)
    weights -= largest
    return np.exp(weights, out=weights)


def target(row: NDArray[np.float64], words: Iterator[int]) -> int:
    """A token from p alone (A20).

    row: binary64 weights, contiguous (V,); words: of 24 bits, from number 0 on.
    Law: token v with probability row[v] / sum(row), the rational number, exactly.
    Errors: ArithmeticRefusalError as in A11, OUT_OF_RANGE (array).
    """
    total, sums = _mass_of(row)
    taken = list(islice(words, 2))
    if _in_range(total):
        slack = total * cpu_verify.bound_of(row.size)
        token = cpu_verify.find(row, sums, total, _first(taken), slack)
        if token != cpu_verify.UNDECIDED:
            return token
    return exact_verify.target(_exact(row), chain(taken, words))


def verify(
    rows: NDArray[np.float64],
    tokens: Sequence[int],
    q: Sequence[QRow],
    source: WordSource,
    *,
    generation: int,
    round: int,
    first_position: int,
) -> Verdict:
    """Judge K >= 1 drafts against K + 1 rows of p (A18-A20).

    rows: binary64 weights, contiguous (K + 1, V), row i conditioned on the drafts before i; a row
    is looked at only when the drafts before it were accepted. q: the K rows that the tokens were
    drawn from. Law: accepted drafts and the token after them are distributed as p alone, whatever
    the q. Errors: ArithmeticRefusalError as in A11, ZERO_Q, ZERO_RESIDUAL, OUT_OF_RANGE.
    """
    exact_verify.check_shape(len(rows), len(tokens))
    _check_proposal(rows, tokens, q)
    for index, token in enumerate(tokens):
        position = first_position + index
        total, _ = _mass_of(rows[index])
        address = Address(generation, round, position, Domain.ACCEPTANCE)
        if not _accept(rows[index], total, q[index], token, source, address):
            address = Address(generation, round, position, Domain.CORRECTION)
            return Verdict(
                index, _correction(rows[index], total, q[index], source, address), "correction"
            )
    depth = len(tokens)
    address = Address(generation, round, first_position + depth, Domain.BONUS)
    return Verdict(depth, target(rows[depth], source.words(address)), "bonus")


def prepare() -> None:
    """Compile every loop, or load it from the cache, so that no round pays for it."""
    logits = np.linspace(-3, 3, 400, dtype=np.float32)
    dense = ProposalPolicy(Layout.DENSE, 1, 1.0)
    whole = quantise(logits, dense)
    nucleus = ProposalPolicy(Layout.SPARSE, 1, 1.0, support=2, top_p=TOTAL // 2)
    few = quantise(logits, nucleus)
    quantise(logits, ProposalPolicy(Layout.SPARSE, 1, 1.0, support=1))
    rows = np.stack([weights_of(-logits)] * 2)
    source = KeyedWords(RequestKey(0))
    for row in (whole, few):
        token = draw(row, TOTAL - 1)  # the far end of q, where p has next to nothing: a rejection
        verify(rows, [token], [row], source, generation=1, round=1, first_position=0)


@cache
def prepare_target() -> None:
    """Compile what a round without drafts runs, or load it from the cache; once."""
    row = weights_of(np.linspace(-3, 3, 400, dtype=np.float32))
    target(row, KeyedWords(RequestKey(0)).words(Address(1, 1, 0, Domain.TARGET_ONLY)))


def _check_policy(policy: ProposalPolicy) -> None:
    exact_quantise.check_temperature(policy.temperature)
    exact_quantise.check_restrictions(policy.top_k, policy.top_p, policy.min_p, policy.support)
    if (policy.layout in WITH_SUPPORT) != (policy.support > 0):
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, "a sparse layout has a support of 1 or more, others have none"
        )
    if policy.layout is Layout.IDS_ONLY and policy.temperature != 0:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, "ids alone, without their q, are for temperature 0"
        )


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
    left, positive = cpu_quantise.share(weights, mass, counts, remainders)
    given = 0
    if 0 < left < positive:
        width = mass.bit_length()
        threshold, ties, equal = cpu_select.kth_largest(remainders, left, width, weights)
        given = cpu_quantise.assign_remainders(counts, remainders, threshold, ties, equal)
    if given != left:
        raise ArithmeticRefusalError(
            RefusalCode.INCONSISTENT_ALLOCATION, f"{left} tickets left over, {given} handed out"
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


def _check_proposal(rows: NDArray[np.float64], tokens: Sequence[int], q: Sequence[QRow]) -> None:
    if len(q) != len(tokens):
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"{len(tokens)} drafts with {len(q)} rows of q"
        )
    for token, row in zip(tokens, q, strict=True):
        if row.vocab_size != rows.shape[-1] or not 0 <= token < row.vocab_size:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE,
                f"a draft, q of {row.vocab_size} ids, p of {rows.shape[-1]}",
            )
        if row.of(token) == 0:
            raise ArithmeticRefusalError(RefusalCode.ZERO_Q, "a draft has q = 0")


def _mass_of(row: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Computed sum of a row of weights that A11 allows, and the sums of its blocks."""
    _check_array("weights", row, np.dtype(np.float64))
    status = cpu_verify.weights_status(row)
    if status:
        raise ArithmeticRefusalError(RefusalCode(status), "no weights of a distribution")
    sums = np.empty(-(-row.size // cpu_verify.BLOCK))
    total = cpu_verify.block_sums(row, sums)
    return total, sums


def _accept(
    row: NDArray[np.float64],
    total: float,
    q: QRow,
    token: int,
    source: WordSource,
    address: Address,
) -> bool:
    """A18, in binary64 where the bound allows."""
    weight, count = float(row[token]), q.of(token)
    if weight == 0:
        return False
    if _in_range(total):
        threshold = weight * (float(TOTAL) * _SPAN) / (count * total)
        margin = threshold * cpu_verify.bound_of(row.size)
        if threshold - margin >= _SPAN:
            return True
        first = _first(list(islice(source.words(address), 2)))
        if first + 1 <= threshold - margin:
            return True
        # first = 0 never surely rejects: the threshold is above zero, even where it underflows.
        if first > 0 and first >= threshold + margin:
            return False
    return exact_verify.accept(_exact(row), q.exact(), token, source.words(address))


def _correction(
    row: NDArray[np.float64], total: float, q: QRow, source: WordSource, address: Address
) -> int:
    """A19, in binary64 where the bound allows."""
    if _in_range(total):
        residual = _workspace.get("residual", row.size, np.float64)
        scale = TOTAL / total
        if q.ids is None:
            cpu_verify.residual_dense(row, scale, q.counts, residual)
        else:
            cpu_verify.residual_sparse(row, scale, q.ids, q.counts, residual)
        sums = np.empty(-(-row.size // cpu_verify.BLOCK))
        left = cpu_verify.block_sums(residual, sums)
        slack = TOTAL * cpu_verify.bound_of(row.size)
        first = _first(list(islice(source.words(address), 2)))
        token = cpu_verify.find(residual, sums, left, first, slack)
        if token != cpu_verify.UNDECIDED:
            return token
    return exact_verify.correction(_exact(row), q.exact(), source.words(address))


def _in_range(total: float) -> bool:
    return cpu_verify.SMALLEST <= total <= cpu_verify.LARGEST


def _first(words: list[int]) -> int:
    return words[0] << WORD_BITS | words[1]


def _exact(row: NDArray[np.float64]) -> list[int]:
    return exact_quantise.integers(row.tolist())
