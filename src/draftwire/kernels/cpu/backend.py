"""The ``numpy`` backend: rows one after another through the CPU kernels; the host's own truth.

Every count, draw and decision is that of :mod:`draftwire.kernels.cpu`, which equals the exact
layer. A row is UNDECIDED only where 48 bits of U do not decide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwire.errors import ArithmeticRefusalError, ConfigurationError, RefusalCode
from draftwire.exact import quantise as exact_quantise
from draftwire.exact.words import WORD_BITS, Address, Domain
from draftwire.kernels import cpu
from draftwire.kernels.backend import (
    NO_TOKEN,
    OK,
    PAD_ID,
    UNDECIDED,
    Drawn,
    Draws,
    QRows,
    Verdicts,
)
from draftwire.kernels.cpu import quantise_loops as cpu_quantise
from draftwire.kernels.cpu import verify_loops as cpu_verify
from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.cpu.target_loops import target_weights
from draftwire.kernels.philox import domain_of, first_of, philox_words, step_of
from draftwire.kernels.protocol import Round
from draftwire.kernels.rows import QRow
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

Array = NDArray[Any]
_WORD_MASK = (1 << WORD_BITS) - 1


class NumpyBackend:
    """Operations over NumPy arrays; see :class:`draftwire.kernels.backend.Backend`.

    logits are binary32: NumPy has no bfloat16. Errors: ConfigurationError for a device.
    """

    name = "numpy"

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise ConfigurationError(f"backend numpy computes on cpu, not on {device}")

    def from_host(self, array: NDArray[Any]) -> Array:
        """A copy of the array."""
        return np.array(array)

    def to_host(self, array: Array) -> NDArray[Any]:
        """The array itself."""
        return array

    def words(self, keys: Array, addresses: Array, count: int) -> Array:
        """The first words of each address (A13)."""
        return philox_words(keys, addresses, count)

    def draws(self, keys: Array, addresses: Array, depth: int) -> Draws[Array]:
        """All words of a round, 48 bits each."""
        batch = len(addresses)
        places = np.repeat(addresses[:, None], 2 * depth + 1, axis=1)
        places[:, :, 2] += step_of(depth)
        own = keys[:, domain_of(depth)]
        first = first_of(philox_words(own.reshape(-1, 2), places.reshape(-1, 3), 2))
        first = first.reshape(batch, -1)
        return Draws(first[:, :depth], first[:, depth:-1], first[:, -1])

    def weights(self, logits: Array, temperature: float) -> tuple[Array, Array]:
        """Integer weights and the status (A1-A4)."""
        exact_quantise.check_temperature(temperature)
        weights = np.zeros(logits.shape, np.int64)
        status = np.zeros(len(logits), np.int32)
        for index, row in enumerate(logits):
            status[index] = _row_status(row)
            if status[index] == OK:
                largest = float(row.max())
                cpu_quantise.integer_weights(row, largest, 1.0 / temperature, weights[index])
        return weights, status

    def top_k(self, logits: Array, ids: Array, k: int) -> tuple[Array, Array]:
        """The k largest, ties to the lowest id; here by sorting."""
        keys = np.where(ids == PAD_ID, -np.inf, logits.astype(np.float64))
        by_id = np.where(ids == PAD_ID, np.iinfo(np.int32).max, ids)
        order = np.lexsort((by_id, -keys), axis=-1)[:, :k]
        # A pad and a real id of -inf are told apart by the id: pads come last among equals.
        chosen = np.take_along_axis(ids, order, 1)
        kept = np.take_along_axis(logits.astype(np.float32), order, 1)
        return np.where(chosen == PAD_ID, np.float32(-np.inf), kept), chosen

    def quantise(self, logits: Array, policy: ProposalPolicy) -> tuple[QRows[Array], Array]:
        """q of each row (A1-A10)."""
        count, size = logits.shape
        status = np.zeros(count, np.int32)
        dense = policy.layout is Layout.DENSE
        width = size if dense else max(1, policy.support)
        counts = np.zeros((count, width), np.int32)
        ids = None if dense else np.full((count, width), PAD_ID, np.int32)
        for index, row in enumerate(logits):
            try:
                q = cpu.quantise(row, policy, counts[index] if dense else None)
            except ArithmeticRefusalError as refusal:
                status[index] = refusal.code
                if status[index] == RefusalCode.OUT_OF_RANGE:  # the policy: the same for every row
                    raise
                continue
            if q.ids is not None and ids is not None:
                ids[index, : len(q.ids)] = q.ids
                counts[index, : len(q.ids)] = q.counts
        return QRows(size, ids, counts), status

    def draw(self, q: QRows[Array], words: Array) -> Array:
        """The token of each word (A16)."""
        tokens = np.full(len(words), NO_TOKEN, np.int64)
        for index, word in enumerate(words.tolist()):
            at = cpu_quantise.sample_inverse_cdf(q.counts[index], word)
            if at >= 0:
                tokens[index] = at if q.ids is None else q.ids[index, at]
        return tokens

    def lookup(self, q: QRows[Array], tokens: Array) -> Array:
        """Counts at one id a row."""
        inside = (tokens >= 0) & (tokens < q.vocab_size)
        if q.ids is None:
            found = np.take_along_axis(q.counts, np.where(inside, tokens, 0)[:, None], 1)[:, 0]
            return np.where(inside, found, 0).astype(np.int64)
        same = (q.ids == tokens[:, None]) & inside[:, None]
        found = np.where(same, q.counts, 0).sum(1, dtype=np.int64)
        return np.asarray(found)

    def residual_mass(self, logits: Array, q: QRows[Array]) -> Array:
        """sum(max(p - q, 0)) of each row (A19)."""
        mass = np.full(len(logits), np.nan)
        for index, row in enumerate(logits):
            if _row_status(row) == OK:
                _, _, mass[index] = _residual(row, _row_of(q, (index,)))
        return mass / TOTAL

    def correction(self, logits: Array, q: QRows[Array], first: Array) -> Drawn[Array]:
        """A token from the residual (A19)."""
        made: Drawn[Array] = Drawn(
            np.full(len(logits), NO_TOKEN, np.int64),
            np.array([_row_status(row) for row in logits], np.int32),
        )
        slack = TOTAL * cpu_verify.bound_of(logits.shape[1])
        for index in np.flatnonzero(made.status == OK):
            values, sums, mass = _residual(logits[index], _row_of(q, (index,)))
            token = cpu_verify.find(values, sums, mass, int(first[index]), slack)
            if token != cpu_verify.UNDECIDED:
                made.tokens[index] = token
            elif mass == 0:
                made.status[index] = RefusalCode.ZERO_RESIDUAL
            else:
                made.status[index] = UNDECIDED
        return made

    def target(self, logits: Array, first: Array) -> Drawn[Array]:
        """A token from p alone (A20)."""
        rounds = [
            Round((), (), row, 1, _RoundWords(Draws(first, first, first), row), 0, 0, 0)
            for row in range(len(logits))
        ]
        made = self._judged(logits, rounds)
        return Drawn(made.tokens, made.status)

    def verify(
        self, logits: Array, tokens: Array, q: QRows[Array], draws: Draws[Array]
    ) -> Verdicts[Array]:
        """Judge K drafts of each request (A18-A20)."""
        batch, depth = tokens.shape
        rounds = [
            Round(
                tokens[index].tolist(),
                [_row_of(q, (index, at)) for at in range(depth)],
                index * (depth + 1),
                depth + 1,
                _RoundWords(draws, index),
                0,
                0,
                0,
            )
            for index in range(batch)
        ]
        return self._judged(logits.reshape(batch * (depth + 1), -1), rounds)

    def _judged(self, scores: Array, rounds: Sequence[Round]) -> Verdicts[Array]:
        found = CpuKernels().verify(scores, rounds)
        sound = np.array([each.status == OK for each in found])
        return Verdicts(
            np.array([each.accepted for each in found]) * sound,
            np.array([NO_TOKEN if each.token is None else each.token for each in found]),
            np.array([each.status for each in found], np.int32),
        )


class _RoundWords:
    """The words of one request's round as the word source that the CPU kernels read."""

    def __init__(self, draws: Draws[Array], index: int) -> None:
        self._draws, self._index = draws, index

    def words(self, address: Address) -> Iterator[int]:
        """The two words of one draw."""
        if address.domain in (Domain.BONUS, Domain.TARGET_ONLY):
            first = int(self._draws.bonus[self._index])
        else:
            of = self._draws.acceptance
            if address.domain is Domain.CORRECTION:
                of = self._draws.correction
            first = int(of[self._index, address.position])
        return iter((first >> WORD_BITS, first & _WORD_MASK))


def _weights(row: Array) -> NDArray[np.float64]:
    weights = np.empty(row.size)
    target_weights(row, weights)
    return weights


def _residual(row: Array, q: QRow) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Residual in tickets, the sums of its blocks, its mass."""
    weights = _weights(row)
    values = np.empty(row.size)
    sums = np.empty(-(-row.size // cpu_verify.BLOCK))
    scale = TOTAL / cpu_verify.block_sums(weights, sums)
    if q.ids is None:
        cpu_verify.residual_dense(weights, scale, q.counts, values)
    else:
        cpu_verify.residual_sparse(weights, scale, q.ids, q.counts, values)
    return values, sums, cpu_verify.block_sums(values, sums)


def _row_of(q: QRows[Array], at: tuple[int, ...]) -> QRow:
    if q.ids is None:
        return QRow(q.vocab_size, None, q.counts[at])
    used = max(1, int(np.count_nonzero(q.ids[at] != PAD_ID)))
    return QRow(q.vocab_size, q.ids[at][:used], q.counts[at][:used])


def _row_status(row: Array) -> int:
    largest = row.max()  # NaN if any is
    if np.isnan(largest) or largest == np.inf:
        return RefusalCode.NON_FINITE
    return RefusalCode.ZERO_MASS if largest == -np.inf else OK
