"""Rows of real vocabularies on every device class and over shards, to the bit those of the CPU.

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
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels.cpu.verify_loops import target_weights
from draftwire.kernels.protocol import UNDECIDED, Kernels, Verdict
from draftwire.kernels.protocol import Round as Judged
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.rows import QRow
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
CPU = kernels_for("cpu", "cpu")
UNDER = (policy(), policy(support=32), POLICIES[9], policy(float(np.float32(0.7)), top_k=5000))
PLACE = Place(1, 1, 40)  # generation, round, position of the first draft

Counted = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # counts, status, tokens


@dataclass
class Round:
    """One round: target logits (K + 1, V), K drafts, the q of each, and whose words judge it."""

    logits: NDArray[np.float32]
    tokens: list[int]
    q: list[QRow]
    request: RequestKey

    def judged(self) -> Judged:
        """The round as kernels take it."""
        return Judged(self.tokens, self.q, 0, DEPTH + 1, KeyedWords(self.request), *astuple(PLACE))


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
    """One way to compute what the CPU does: other kernels, or shards of its own."""

    def __init__(
        self,
        count: Callable[[NDArray[np.float32], ProposalPolicy, NDArray[np.int64]], Counted],
        judge: Callable[[Round], Verdict],
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
    from draftwire.kernels.triton.kernels import TritonKernels
    from draftwire.kernels.triton.tiles import Tiling

    tiling = Tiling(block=HOST_BLOCK) if device == "cpu" else None
    ways = {
        "torch": _on(kernels_for("torch", device)),
        "triton": _on(TritonKernels(device, tiling)),
    }
    return ways | {f"{number} shards": _over(number) for number in SHARDS}


def _compare(name: str, way: Way, vocab: int, rows: int) -> Line:
    """Rows to counts and tokens, then as many rows in rounds, beside the CPU's."""
    line, cpu = Line(name, vocab), _on(CPU)
    began = time.monotonic()
    for first in range(0, rows, BATCH):
        count = min(BATCH, rows - first)
        logits = logits_of(count, vocab, seed=first * 1000 + vocab, first=first)
        words = np.random.default_rng(first).integers(0, TOTAL, count)
        given = UNDER[first // BATCH % len(UNDER)]
        expected, found = (each.count(logits, given, words) for each in (cpu, way))
        line.rows += count
        differ = (expected[0] != found[0]).any(1) | (expected[1] != found[1])
        line.rows_differing += int(differ.sum())
        line.draws_differing += int((expected[2] != found[2]).sum())
    for each in _rounds(vocab, -(-rows // (DEPTH + 1))):
        line.rounds += 1
        line.round_rows += DEPTH + 1
        due, made = cpu.judge(each), way.judge(each)
        if UNDECIDED in (due.status, made.status):
            line.undecided += 1
        else:
            line.rounds_differing += due != made
    line.seconds = round(time.monotonic() - began, 1)
    return line


def _rounds(vocab: int, number: int) -> Iterator[Round]:
    """Rounds of drafts near their target, dense and sparse in turn, hard rows among them."""
    for index in range(number):
        rows = logits_of(DEPTH + 1, vocab, seed=vocab + index, first=index * (DEPTH + 1))
        rng = np.random.default_rng(index)
        noise = rng.standard_normal((DEPTH, vocab)) * 0.5
        with np.errstate(over="ignore"):
            draft = (rows[:DEPTH] + noise).astype(np.float32)
        q, _ = CPU.quantise(draft, UNDER[index % 2])
        tokens = CPU.draw(q, rng.integers(0, TOTAL, DEPTH)).tolist()
        yield Round(rows, tokens, CPU.host_rows(q), RequestKey(index))


def _on(kernels: Kernels[Any]) -> Way:
    """Kernels of one device class."""

    def count(
        logits: NDArray[np.float32], given: ProposalPolicy, words: NDArray[np.int64]
    ) -> Counted:
        q, status = kernels.quantise(kernels.from_host(logits), given)
        counts = _spread(kernels.host_rows(q), logits.shape[1])
        return counts, np.array(status.tolist()), kernels.draw(q, words)

    def judge(each: Round) -> Verdict:
        return kernels.verify(kernels.from_host(each.logits), [each.judged()])[0]

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

    def judge(each: Round) -> Verdict:
        vocab = each.logits.shape[-1]
        p = np.empty((1, *each.logits.shape))
        for scores, out in zip(each.logits, p[0], strict=True):
            target_weights(scores, out)
        counts = _spread(each.q, vocab)[None].astype(np.int32)
        tokens = np.array([each.tokens])

        def rank(shard: Shard) -> Steps[ShardVerdicts]:
            own = slice(shard.begin, shard.end)
            rows, q = np.ascontiguousarray(p[..., own]), np.ascontiguousarray(counts[..., own])
            sources = [KeyedWords(each.request)] if shard.leads else None
            return shards_verify.verify(Rounds(shard, rows, tokens, q), [PLACE], sources)

        return emulate([rank(shard) for shard in even_shards(vocab, number)])[0].verdict(0)

    return Way(count, judge)


def _spread(rows: Sequence[QRow], vocab: int) -> NDArray[np.int64]:
    """Counts of every id, (N, V)."""
    whole = np.zeros((len(rows), vocab), np.int64)
    for row, out in zip(rows, whole, strict=True):
        out[slice(None) if row.ids is None else row.ids] = row.counts
    return whole


def _text(line: Line) -> str:
    differ = f"{line.rows_differing} rows, {line.draws_differing} draws"
    return (
        f"{line.name:<9} V={line.vocab:<8,} {line.rows} rows quantised and drawn from: {differ}"
        f" differ; {line.rounds} rounds of {line.round_rows} rows: {line.rounds_differing} differ,"
        f" {line.undecided} undecided; {line.seconds} s"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
