"""The CPU's implementation of :class:`draftwire.kernels.protocol.Kernels`: compiled loops.

Scores are NumPy arrays, or torch tensors of the host without a copy; torch is not imported. A round
is two compiled calls without the interpreter lock: its drafts, row after row as long as they stand,
and the token behind them. The row of weights that the first leaves is what the second draws from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.words import Domain, KeyedWords, RequestKey
from draftwire.kernels import cpu
from draftwire.kernels.adjustments import Adjustment, Kept, Scaled, steps_of
from draftwire.kernels.cpu import verify_loops as loops
from draftwire.kernels.protocol import NO_TOKEN, OK, QRows, Round, Verdict
from draftwire.kernels.refusals import draft_counts
from draftwire.kernels.rows import QRow
from draftwire.kernels.words import first_bits
from draftwire.kernels.workspace import Workspace
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import PAD_ID, TOTAL, Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_IDS: Final = np.empty(0, np.int32)
_workspace: Final = Workspace()


class CpuKernels:
    """See :class:`draftwire.kernels.protocol.Kernels`. Array: NumPy's; tensors are taken too."""

    name = "cpu"

    def __init__(self, device: str = "cpu") -> None:
        """Compute on the host, wherever the scores lie."""

    def prepare(self, policies: Sequence[ProposalPolicy], width: int) -> None:
        """Compile the loops, which serve any policy and width, or load them from their cache."""
        prepare()

    def from_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return array

    def host_row(self, scores: Any, row: int) -> NDArray[Any]:
        """One row of scores, (V,), binary32 or binary64."""
        made: NDArray[Any] = host_rows_of(scores[row : row + 1])[0]
        return made

    def adjust(
        self, logits: Any, adjustments: Sequence[Sequence[Adjustment]]
    ) -> NDArray[np.float32]:
        """New rows, adjusted (A30)."""
        given = host_rows_of(logits)
        if given.dtype != np.float32:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE, f"logits are binary32 or narrower, not {given.dtype}"
            )
        rows = given.copy()
        flat = rows.reshape(-1)
        with np.errstate(all="ignore"):  # an infinity is refused later, or is meant
            for step in steps_of(adjustments, rows.shape[1]):
                z = flat[step.places]
                if step.kind is Scaled:
                    z = np.where(z > 0, z / step.values, z * step.values)
                elif step.kind is Kept:
                    rows[step.rows] += np.float32(-np.inf)
                else:
                    z += step.values
                flat[step.places] = z
        return rows

    def quantise(
        self, logits: Any, policy: ProposalPolicy
    ) -> tuple[QRows[NDArray[Any]], NDArray[Any]]:
        """q of each row (A1-A10), and its status."""
        rows = host_rows_of(logits)
        count, size = rows.shape
        status = np.zeros(count, np.int32)
        dense = policy.layout is Layout.DENSE
        width = size if dense else max(1, policy.support)
        counts = np.zeros((count, width), np.int32)
        ids = None if dense else np.full((count, width), PAD_ID, np.int32)
        for index, row in enumerate(rows):
            try:
                q = cpu.quantise(row, policy, counts[index] if dense else None)
            except ArithmeticRefusalError as refusal:
                if refusal.code is RefusalCode.OUT_OF_RANGE:  # the policy: the same for every row
                    raise
                status[index] = refusal.code
                counts[index] = 0
                continue
            if q.ids is not None and ids is not None:
                ids[index, : len(q.ids)] = q.ids
                counts[index, : len(q.ids)] = q.counts
        return QRows(size, ids, counts), status

    def draw(self, q: QRows[NDArray[Any]], uniform24: NDArray[Any]) -> NDArray[Any]:
        """The token of each row (A16)."""
        tokens = np.full(len(uniform24), NO_TOKEN, np.int64)
        for index, word in enumerate(uniform24.tolist()):
            at = cpu.cpu_quantise.sample_inverse_cdf(q.counts[index], word)
            if at >= 0:
                tokens[index] = at if q.ids is None else q.ids[index, at]
        return tokens

    def host_rows(self, q: QRows[NDArray[Any]]) -> list[QRow]:
        """The rows as they go on the wire."""
        if q.ids is None:
            return [QRow(q.vocab_size, None, row) for row in q.counts]
        used = np.maximum((q.ids != PAD_ID).sum(axis=1), 1).tolist()
        return [
            QRow(q.vocab_size, ids[:width], counts[:width])
            for ids, counts, width in zip(q.ids, q.counts, used, strict=True)
        ]

    def verify(self, scores: Any, rounds: Sequence[Round]) -> list[Verdict]:
        """Judge the rounds of B requests."""
        rows = host_rows_of(scores)
        return [_judged(rows, each) for each in rounds]


@cache
def prepare() -> None:
    """Compile every loop of a round, or load it from the cache; once."""
    kernels, words = CpuKernels(), KeyedWords(RequestKey(0))
    drafts = np.linspace(-3, 3, 8, dtype=np.float32)[None]
    away = np.repeat(-4 * drafts, 2, 0)
    for policy in (ProposalPolicy(Layout.DENSE, 1, 1.0), ProposalPolicy(Layout.SPARSE, 1, 1.0, 4)):
        q, _ = kernels.quantise(drafts, policy)
        tokens = kernels.draw(q, np.array([TOTAL - 1])).tolist()  # where p has next to nothing
        for scores in (away, np.exp(away.astype(np.float64))):
            for greedy in (False, True):
                for of in (kernels.host_rows(q), ()):
                    round_ = Round(tokens[: len(of)], of, 0, len(of) + 1, words, 1, 1, 0, greedy)
                    kernels.verify(scores, [round_])


def host_rows_of(scores: Any) -> NDArray[Any]:
    """Scores as binary32 or binary64 (R, V) on the host, contiguous; a copy only where needed.

    Errors: ArithmeticRefusalError OUT_OF_RANGE for another type or shape.
    """
    if not isinstance(scores, np.ndarray):
        # A tensor; NumPy has no bfloat16.
        narrow = scores.is_floating_point() and scores.dtype.itemsize < 4
        scores = (scores.float() if narrow else scores).detach().cpu().numpy()
    elif scores.dtype == np.float16:
        scores = scores.astype(np.float32)
    if scores.dtype not in (np.float32, np.float64) or scores.ndim != 2 or not scores.shape[1]:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE,
            f"scores are binary32 or binary64 (R, V), not {scores.dtype} {scores.shape}",
        )
    rows: NDArray[Any] = _plain(scores)
    return rows


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """The array as the loops are compiled for it: contiguous and not read-only."""
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable else np.array(array, order="C")


def _judged(rows: NDArray[Any], this: Round) -> Verdict:
    """One request's round."""
    counts = draft_counts(this, *rows.shape)
    if isinstance(counts, RefusalCode):
        return Verdict(0, None, counts)
    tokens = np.array(this.tokens, np.int64)
    if this.greedy:
        found = loops.accept_greedy(
            rows, rows.dtype == np.float32, this.first_row, tokens, this.row_count
        )
        return Verdict(found[0], None if found[1] == NO_TOKEN else found[1], found[2])
    return _sampled(rows, this, tokens, np.array(counts, np.int64))


def _sampled(
    rows: NDArray[Any], this: Round, tokens: NDArray[np.int64], counts: NDArray[np.int64]
) -> Verdict:
    """A round of a target that samples: its drafts, then the token behind those that stand."""
    logits = rows.dtype == np.float32
    depth, width = tokens.size, rows.shape[1]
    bound = loops.bound_of(width)
    weights = _workspace.get("weights", width, np.float64)
    sums = _workspace.get("sums", -(-width // loops.BLOCK), np.float64)
    firsts = _firsts(this, depth)
    index, status, total = 0, loops.WORD_WANTED, 0.0
    while True:
        index, status, total = loops.accept_drafts(
            rows, logits, this.first_row, tokens, counts, index, firsts, bound, weights, sums
        )
        if status != loops.WORD_WANTED:
            break
        firsts[index] = _first(this, index, Domain.ACCEPTANCE)
    token = NO_TOKEN
    if status == OK and index < depth:
        q, first = this.rows[index], _first(this, index, Domain.CORRECTION)
        ids = _NO_IDS if q.ids is None else _plain(q.ids)
        own = _plain(q.counts)
        sparse = q.ids is not None
        token, status = loops.draw_residual(weights, total, sparse, ids, own, first, bound, sums)
    elif status == OK and this.row_count > depth:
        first = _first(this, depth, Domain.BONUS if depth else Domain.TARGET_ONLY)
        row = rows[this.first_row + depth]
        token, status = loops.draw_target(row, logits, first, bound, weights, sums)
    return Verdict(index, None if token == NO_TOKEN or status != OK else token, status)


def _firsts(this: Round, depth: int) -> NDArray[np.int64]:
    """48 bits of U for the acceptance of every draft, int64 (K,): known of a key, else UNREAD.

    Of any other source a word is read when it decides, and no word that decides nothing.
    """
    if isinstance(this.words, KeyedWords):
        return np.array([_first(this, at, Domain.ACCEPTANCE) for at in range(depth)], np.int64)
    return np.full(depth, loops.UNREAD, np.int64)


def _first(this: Round, index: int, domain: Domain) -> int:
    """The first 48 bits of the U of one decision."""
    position = this.first_position + index
    return first_bits(this.words, this.generation, this.round, position, domain)
