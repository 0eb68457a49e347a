"""Whole rows put through the sharded kernels on an emulated group, and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from draftwire.exact.words import WordSource
from draftwire.kernels.shards import quantise as shards_quantise
from draftwire.kernels.shards import verify as shards_verify
from draftwire.kernels.shards.emulator import emulate
from draftwire.kernels.shards.shard import Shard, ShardRows, Steps, even_shards, shards_at
from draftwire.kernels.shards.verify import Place, Rounds, ShardVerdicts
from draftwire.wire.messages import ProposalPolicy

Split = tuple[Shard, ...]


def columns(array: NDArray[np.generic], shard: Shard) -> NDArray[np.generic]:
    return np.ascontiguousarray(array[..., shard.begin : shard.end])


def splits(vocab_size: int, count: int, rng: np.random.Generator) -> Iterator[Split]:
    """The even split, a random one, and one with empty shards and a shard of one id."""
    yield even_shards(vocab_size, count)
    yield shards_at(vocab_size, sorted(rng.integers(0, vocab_size + 1, count - 1).tolist()))
    lone = int(rng.integers(0, vocab_size))
    yield shards_at(vocab_size, ([lone, lone + 1] + [vocab_size] * count)[: count - 1])


def same_everywhere(results: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    """What every rank has; all must have the same."""
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    return results[0]


def quantised(
    split: Split,
    logits: NDArray[np.float32],
    policy: ProposalPolicy,
    words: NDArray[np.int64],
) -> tuple[NDArray[np.generic], NDArray[np.generic], NDArray[np.generic]]:
    """Counts (N, V), status and drawn tokens of rows quantised over the shards."""

    def rank(shard: Shard) -> Steps[tuple[ShardRows, NDArray[np.int64]]]:
        own = columns(logits, shard).astype(np.float32, copy=False)
        rows = yield from shards_quantise.quantise(shard, own, policy)
        return rows, (yield from shards_quantise.draw(rows, words if shard.leads else None))

    results = emulate([rank(shard) for shard in split])
    counts = np.concatenate([rows.counts for rows, _ in results], axis=1)
    masses = same_everywhere([rows.masses for rows, _ in results])
    for index, (rows, _) in enumerate(results):
        np.testing.assert_array_equal(rows.counts.sum(axis=1), masses[:, index])
    status = same_everywhere([rows.status for rows, _ in results])
    return counts, status, same_everywhere([tokens for _, tokens in results])


def verified(
    split: Split,
    rows: NDArray[np.float64],
    tokens: NDArray[np.int64],
    counts: NDArray[np.int32],
    places: Sequence[Place],
    sources: Sequence[WordSource],
) -> ShardVerdicts:
    """The verdicts of rounds judged over the shards; every rank has the same ones."""

    def rank(shard: Shard) -> Steps[ShardVerdicts]:
        own = Rounds(shard, columns(rows, shard), tokens, columns(counts, shard))  # type: ignore[arg-type]
        return shards_verify.verify(own, places, sources if shard.leads else None)

    results = emulate([rank(shard) for shard in split])
    for name in ("accepted", "tokens", "status"):
        same_everywhere([getattr(result, name) for result in results])
    return results[0]
