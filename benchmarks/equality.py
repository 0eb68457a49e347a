"""Rows of real vocabularies on every backend and over shards, each held against numpy to the bit.

    python -m benchmarks.equality [--rows 200] [--vocab 129280 ...] [--only NAME] [--out FOLDER]

Triton runs its compiled kernels where there is a GPU, and its interpreter elsewhere: that takes
minutes, so ``make test`` has fewer rows of it. A line says how many rows differ in a count or in
their status, how many draws are another token, and how many rounds end otherwise; rounds that a
bound left undecided are not among the latter and are counted beside them. Every eighth row is an
adversarial one, of twelve kinds. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from draftwire.exact.words import Domain, KeyedWords, RequestKey
from draftwire.kernels.backend import (
    UNDECIDED,
    Backend,
    QRows,
    load,
)
from draftwire.kernels.cpu.target_loops import target_weights
from draftwire.kernels.shards import quantise as shards_quantise
from draftwire.kernels.shards import verify as shards_verify
from draftwire.kernels.shards.emulator import emulate
from draftwire.kernels.shards.shard import Shard, ShardRows, Steps, even_shards
from draftwire.kernels.shards.verify import Place, Rounds, ShardVerdicts
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL
from testing.toys.logits import POLICIES, logits_of, policy

VOCABULARIES = (129_280, 262_144)
SHARDS = (2, 3, 4, 7)
BATCH = 8  # rows at a time
DEPTH = 5
HOST_BLOCK = 32_768  # columns of a tile under the interpreter
UNDER = (policy(), policy(support=32), POLICIES[9], policy(float(np.float32(0.7)), top_k=5000))
DOMAINS = (Domain.ACCEPTANCE, Domain.CORRECTION, Domain.BONUS)

Counted = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # counts, status, tokens
Judged = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # accepted, tokens, status


@dataclass
class Round:
    """One round: target logits (1, K + 1, V), drafts (1, K), their q, and whose words judge it."""

    logits: NDArray[np.float32]
    tokens: NDArray[np.int64]
    q: QRows[Any]
    request: RequestKey

    @property
    def addresses(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The keys of the domains, and where the round stands."""
        keys = np.array([[self.request.key(domain) for domain in DOMAINS]])
        return keys, np.array([[1, 1, 40]])


@dataclass
class Line:
    """What was found of one way to compute at one vocabulary; counts of what differs."""

    name: str
    vocab: int
    rows: int = 0
    rows_differing: int = 0
    draws_differing: int = 0
    round_rows: int = 0
    rounds: int = 0
    rounds_differing: int = 0
    undecided: int = 0
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.rows_differing or self.draws_differing or self.rounds_differing)


class Way:
    """One way to compute what numpy does: a backend, or shards of numpy's own kernels."""

    def __init__(
        self,
        count: Callable[[NDArray[np.float32], ProposalPolicy, NDArray[np.int64]], Counted],
        judge: Callable[[Round], Judged],
    ) -> None:
        """Take what quantises and draws, and what judges a round."""
        self.count = count
        self.judge = judge


def main(arguments: Sequence[str]) -> int:
    """Compare, print, write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equality", description=__doc__)
    parser.add_argument("--rows", type=int, default=200, help="of each vocabulary")
    parser.add_argument("--vocab", type=int, action="append", help="instead of the two of the goal")
    parser.add_argument("--only", help="one way: torch, triton, or '2 shards'")
    parser.add_argument("--out", type=Path, default=Path(".out"), help="where equality.json goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines = []
    for vocab in options.vocab or VOCABULARIES:
        for name, way in _ways(device).items():
            if options.only in (None, name):
                lines.append(_compare(name, way, vocab, options.rows))
                print(_text(lines[-1]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"device": device, "lines": [asdict(line) for line in lines]}
    (options.out / "equality.json").write_text(json.dumps(document, indent=2) + "\n")
    return 0 if all(line.equal for line in lines) else 1


def _ways(device: str) -> dict[str, Way]:
    from draftwire.kernels.triton.backend import TritonBackend
    from draftwire.kernels.triton.tiles import Tiling

    tiling = Tiling(block=HOST_BLOCK) if device == "cpu" else None
    ways = {
        "torch": _on(load("torch", device)),
        "triton": _on(TritonBackend(device, tiling)),
    }
    return ways | {f"{number} shards": _over(number) for number in SHARDS}


def _compare(name: str, way: Way, vocab: int, rows: int) -> Line:
    """Rows to counts and tokens, then as many rows in rounds, beside numpy's."""
    line, numpy = Line(name, vocab), _on(load("numpy"))
    began = time.monotonic()
    for first in range(0, rows, BATCH):
        count = min(BATCH, rows - first)
        logits = logits_of(count, vocab, seed=first * 1000 + vocab, first=first)
        words = np.random.default_rng(first).integers(0, TOTAL, count)
        given = UNDER[first // BATCH % len(UNDER)]
        expected, found = (each.count(logits, given, words) for each in (numpy, way))
        line.rows += count
        differ = (expected[0] != found[0]).any(1) | (expected[1] != found[1])
        line.rows_differing += int(differ.sum())
        line.draws_differing += int((expected[2] != found[2]).sum())
    for each in _rounds(vocab, -(-rows // (DEPTH + 1))):
        line.rounds += 1
        line.round_rows += DEPTH + 1
        due, made = numpy.judge(each), way.judge(each)
        if UNDECIDED in (due[2][0], made[2][0]):
            line.undecided += 1
        else:
            line.rounds_differing += any((a != b).any() for a, b in zip(due, made, strict=True))
    line.seconds = round(time.monotonic() - began, 1)
    return line


def _rounds(vocab: int, number: int) -> Iterator[Round]:
    """Rounds of drafts near their target, dense and sparse in turn, hard rows among them."""
    numpy = load("numpy")
    for index in range(number):
        rows = logits_of(DEPTH + 1, vocab, seed=vocab + index, first=index * (DEPTH + 1))
        rng = np.random.default_rng(index)
        noise = rng.standard_normal((DEPTH, vocab)) * 0.5
        with np.errstate(over="ignore"):
            draft = (rows[:DEPTH] + noise).astype(np.float32)
        q, _ = numpy.quantise(draft, UNDER[index % 2])
        tokens = numpy.draw(q, rng.integers(0, TOTAL, DEPTH))
        ids = None if q.ids is None else q.ids[None]
        of_round = QRows(vocab, ids, q.counts[None])
        yield Round(rows[None], tokens[None], of_round, RequestKey(index))


def _on(backend: Backend[Any]) -> Way:
    """A backend."""

    def count(
        logits: NDArray[np.float32], given: ProposalPolicy, words: NDArray[np.int64]
    ) -> Counted:
        q, status = backend.quantise(backend.from_host(logits), given)
        tokens = backend.draw(q, backend.from_host(words))
        ids = None if q.ids is None else backend.to_host(q.ids)
        counts = _spread(ids, backend.to_host(q.counts), logits.shape[1])
        return counts, backend.to_host(status), backend.to_host(tokens)

    def judge(each: Round) -> Judged:
        keys, addresses = (backend.from_host(array) for array in each.addresses)
        ids = None if each.q.ids is None else backend.from_host(each.q.ids)
        q = QRows(each.q.vocab_size, ids, backend.from_host(each.q.counts))
        logits, tokens = backend.from_host(each.logits), backend.from_host(each.tokens)
        made = backend.verify(logits, tokens, q, backend.draws(keys, addresses, DEPTH))
        accepted, token, status = made.accepted, made.tokens, made.status
        return backend.to_host(accepted), backend.to_host(token), backend.to_host(status)

    return Way(count, judge)


def _over(number: int) -> Way:
    """Shards, every rank in this process."""

    def count(
        logits: NDArray[np.float32], given: ProposalPolicy, words: NDArray[np.int64]
    ) -> Counted:
        def rank(shard: Shard) -> Steps[tuple[ShardRows, NDArray[np.int64]]]:
            own = np.ascontiguousarray(logits[:, shard.begin : shard.end])
            rows = yield from shards_quantise.quantise(shard, own, given)
            return rows, (yield from shards_quantise.draw(rows, words if shard.leads else None))

        results = emulate([rank(shard) for shard in even_shards(logits.shape[1], number)])
        counts = np.concatenate([rows.counts for rows, _ in results], axis=1)
        return counts, results[0][0].status, results[0][1]

    def judge(each: Round) -> Judged:
        vocab = each.logits.shape[-1]
        p = np.empty(each.logits.shape)
        for scores, out in zip(each.logits[0], p[0], strict=True):
            target_weights(scores, out)
        ids = None if each.q.ids is None else each.q.ids[0]
        counts = _spread(ids, each.q.counts[0], vocab)[None].astype(np.int32)

        def rank(shard: Shard) -> Steps[ShardVerdicts]:
            own = slice(shard.begin, shard.end)
            rows, q = np.ascontiguousarray(p[..., own]), np.ascontiguousarray(counts[..., own])
            sources = [KeyedWords(each.request)] if shard.leads else None
            return shards_verify.verify(
                Rounds(shard, rows, each.tokens, q), [Place(1, 1, 40)], sources
            )

        found = emulate([rank(shard) for shard in even_shards(vocab, number)])[0]
        return found.accepted, found.tokens, found.status

    return Way(count, judge)


def _spread(ids: NDArray[Any] | None, counts: NDArray[Any], vocab: int) -> NDArray[np.int64]:
    """Counts of every id, (N, V)."""
    if ids is None:
        return counts.astype(np.int64)
    whole = np.zeros((len(counts), vocab + 1), np.int64)
    np.put_along_axis(whole, np.where(ids < 0, vocab, ids), counts, axis=1)
    return whole[:, :vocab]


def _text(line: Line) -> str:
    differ = f"{line.rows_differing} rows, {line.draws_differing} draws"
    return (
        f"{line.name:<9} V={line.vocab:<8,} {line.rows} rows quantised and drawn from: {differ}"
        f" differ; {line.rounds} rounds of {line.round_rows} rows: {line.rounds_differing} differ,"
        f" {line.undecided} undecided; {line.seconds} s"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
