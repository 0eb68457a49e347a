"""The decisions that a round left to the host: taken after it, from exact integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.verify import Verdict
from draftwire.exact.words import WordSource
from draftwire.kernels import cpu
from draftwire.kernels.backend import (
    OK,
    PAD_ID,
    UNDECIDED,
    Backend,
    QRows,
    Verdicts,
)
from draftwire.kernels.cpu.target_loops import target_weights
from draftwire.kernels.rows import QRow

Array = TypeVar("Array")


@dataclass(frozen=True, slots=True)
class Round:
    """Where the words of one request's round are: those that the device computed, and all after."""

    source: WordSource
    generation: int
    round: int
    first_position: int


def resolve(
    backend: Backend[Array],
    verdicts: Verdicts[Array],
    logits: Array,
    tokens: Array,
    q: QRows[Array],
    rounds: Sequence[Round],
) -> list[Verdict | ArithmeticRefusalError]:
    """What became of each request, every decision the exact one of A17-A20 and A24.

    verdicts, logits, tokens, q: of one ``Backend.verify``; rounds: one a request. Reads the
    verdicts, and of an UNDECIDED request its rows; waits for the device. A refusal is returned in
    the place of its request, for the caller to raise or to report: the others are not touched.
    """
    accepted, drawn, status = (
        backend.to_host(each) for each in (verdicts.accepted, verdicts.tokens, verdicts.status)
    )
    depth = backend.to_host(tokens).shape[1]
    out: list[Verdict | ArithmeticRefusalError] = []
    for index, code in enumerate(status.tolist()):
        if code == UNDECIDED:
            out.append(_exactly(backend, logits, tokens, q, rounds[index], index))
        elif code != OK:
            refusal = RefusalCode(code)
            out.append(ArithmeticRefusalError(refusal, f"request {index}: {refusal.name}"))
        else:
            count = int(accepted[index])
            token = int(drawn[index])
            out.append(Verdict(count, token, "bonus" if count == depth else "correction"))
    return out


def host_rows(backend: Backend[Array], q: QRows[Array], index: int) -> list[QRow]:
    """The K rows of q of one request, on the host."""
    counts = _one(backend, q.counts, index)
    if q.ids is None:
        return [QRow(q.vocab_size, None, row) for row in counts]
    ids = _one(backend, q.ids, index)
    used = [max(1, int(np.count_nonzero(row != PAD_ID))) for row in ids]
    return [QRow(q.vocab_size, ids[at][:end], counts[at][:end]) for at, end in enumerate(used)]


def _one(backend: Backend[Array], array: Array, index: int) -> NDArray[Any]:
    batch: Any = array
    return np.ascontiguousarray(backend.to_host(batch[index]))


def _exactly(
    backend: Backend[Array],
    logits: Array,
    tokens: Array,
    q: QRows[Array],
    where: Round,
    index: int,
) -> Verdict | ArithmeticRefusalError:
    scores = _one(backend, logits, index).astype(np.float32, copy=False)
    weights = np.empty(scores.shape)
    for row, out in zip(scores, weights, strict=True):
        target_weights(row, out)
    try:
        return cpu.verify(
            weights,
            _one(backend, tokens, index).tolist(),
            host_rows(backend, q, index),
            where.source,
            generation=where.generation,
            round=where.round,
            first_position=where.first_position,
        )
    except ArithmeticRefusalError as refusal:
        return refusal
