"""A batch of rounds judged in one call, beside row by row as before, on the host's own kernels.

Row by row: every row of every request is turned into binary64 weights, exp(score - largest), and
one request after another is judged from them. That is what the programs did, and it is written here
with the same compiled operations.

    python -m benchmarks.verify
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

from draftwire.exact.words import Domain, KeyedWords, RequestKey
from draftwire.kernels import cpu
from draftwire.kernels.cpu import verify_loops as loops
from draftwire.kernels.protocol import Round
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.words import first_bits
from draftwire.verifier.judge import judge
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

VOCABULARY = 129_280
DEPTH = 5
BATCHES = (1, 8, 32)
GOALS = {1: 1.0, 8: 0.7, 32: 0.7}
DISTANCE = 0.5  # standard deviation between draft and target logits
POLICY = ProposalPolicy(Layout.DENSE, DEPTH, 1.0)

Committed = list[tuple[int, int]]


def main() -> None:
    """Print the medians of each size of batch, and what was to be reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    options = parser.parse_args()
    print(f"K = {DEPTH}, V = {options.vocabulary:,}, binary32 scores; medians of {options.runs}")
    for batch in BATCHES:
        scores, rounds = made(batch, options.vocabulary)
        if batched(scores, rounds) != row_by_row(scores, rounds):
            raise SystemExit("the two ways commit different tokens")
        old, new = alternated(scores, rounds, options.runs)
        print(
            f"batch {batch:2}: row by row {old * 1e3:7.2f} ms, one call {new * 1e3:7.2f} ms,"
            f" {new / old:.2f}x (goal: at most {GOALS[batch]}x)"
        )


def made(batch: int, size: int) -> tuple[NDArray[np.float32], list[Round]]:
    """Scores (batch * (K + 1), V) and rounds whose drafts are drawn from q's near them."""
    rng = np.random.default_rng(batch)
    scores = (rng.standard_normal((batch * (DEPTH + 1), size)) * 2.5).astype(np.float32)
    rounds = []
    for request in range(batch):
        first = request * (DEPTH + 1)
        tokens, rows = [], []
        for at in range(first, first + DEPTH):
            draft = scores[at] + rng.standard_normal(size) * DISTANCE
            rows.append(cpu.quantise(draft.astype(np.float32), POLICY))
            tokens.append(cpu.draw(rows[-1], int(rng.integers(TOTAL))))
        words = KeyedWords(RequestKey(request))
        rounds.append(Round(tokens, rows, first, DEPTH + 1, words, 1, 1, 40))
    return scores, rounds


def batched(scores: NDArray[np.float32], rounds: list[Round]) -> Committed:
    """What the programs do: one call."""
    made = judge(kernels_for("auto", scores), scores, rounds)
    return [(each.accepted, each.tokens[-1]) for each in made]


def row_by_row(scores: NDArray[np.float32], rounds: list[Round]) -> Committed:
    """Weights of all rows first, then one request after another."""
    return [_one(scores[each.first_row : each.first_row + each.row_count], each) for each in rounds]


def _one(scores: NDArray[np.float32], this: Round) -> tuple[int, int]:
    size = scores.shape[1]
    rows = np.empty(scores.shape)
    for row, out in zip(scores, rows, strict=True):
        np.subtract(row, row.max(), out=out, dtype=np.float64)
        np.exp(out, out=out)
    bound, sums = loops.bound_of(size), np.empty(-(-size // loops.BLOCK))
    for index, (token, q) in enumerate(zip(this.tokens, this.rows, strict=True)):
        row = rows[index]
        assert np.isfinite(row.max())
        total = loops.block_sums(row, sums)
        threshold = row[token] * float(TOTAL << 48) / (q.of(token) * total)
        if _first(this, index, Domain.ACCEPTANCE) >= threshold:
            left = np.empty(size)
            loops.residual_dense(row, TOTAL / total, q.counts, left)
            mass = loops.block_sums(left, sums)
            first = _first(this, index, Domain.CORRECTION)
            return index, loops.find(left, sums, mass, first, TOTAL * bound)
    row = rows[-1]
    total = loops.block_sums(row, sums)
    first = _first(this, len(this.tokens), Domain.BONUS)
    return len(this.tokens), loops.find(row, sums, total, first, total * bound)


def _first(this: Round, index: int, domain: Domain) -> int:
    return first_bits(this.words, this.generation, this.round, this.first_position + index, domain)


def alternated(scores: NDArray[np.float32], rounds: list[Round], runs: int) -> tuple[float, float]:
    """Median seconds of row by row and of one call, in turns."""
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(runs):
        for way, kept in zip((row_by_row, batched), seconds, strict=True):
            began = time.perf_counter()
            way(scores, rounds)
            kept.append(time.perf_counter() - began)
    return median(seconds[0]), median(seconds[1])


if __name__ == "__main__":
    main()
