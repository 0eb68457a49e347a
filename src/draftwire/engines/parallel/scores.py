"""One request as a rank has it, and p at its positions under either parallelism.

Vocabulary-sharded, each rank has its own columns of p, after processors that are split with them.
Request-sharded, the rank that owns the request has whole rows of p, after any processors; the
others have none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.generation import logits_process as stock

from draftwire.engines.hf.processors import RowProcessors
from draftwire.engines.hf.rope import ModelSequence
from draftwire.engines.hf.target import prepare, sampling_arguments
from draftwire.engines.parallel.columns import ModelColumns
from draftwire.engines.parallel.commands import bits_of, number_of, signed, unsigned
from draftwire.errors import ConfigurationError
from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels.shards import restrict
from draftwire.kernels.shards.requests import owner_of
from draftwire.kernels.shards.shard import Shard, Steps, gather
from draftwire.kernels.shards.target import point_of, weights_of
from draftwire.verifier.parallelism import Parallelism
from draftwire.verifier.sampling import Sampling

OPEN_NUMBERS: Final = 10
_PARALLELISMS: Final = tuple(Parallelism)
_SPLIT: Final = (
    stock.RepetitionPenaltyLogitsProcessor,
    stock.TemperatureLogitsWarper,
    stock.TopKLogitsWarper,
    stock.TopPLogitsWarper,
    stock.MinPLogitsWarper,
)


@dataclass(slots=True)
class RankedRequest:
    """One request as a rank has it: its sequence, processors and committed text.

    words: of a request that this rank judges alone. pending: what the latest verdict brought, of
    which the leader says how much is kept. rounds: of each round, how many drafts were judged and
    how many stood.
    """

    number: int
    sequence: ModelSequence
    processors: Any
    greedy: bool
    parallelism: Parallelism
    owner: int
    words: KeyedWords | None
    committed: list[int]
    prompt: int
    pending: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def text(self) -> tuple[int, ...]:
        """The committed text, without its prompt."""
        return tuple(self.committed[self.prompt :])


def open_numbers(sampling: Sampling, parallelism: Parallelism) -> list[int]:
    """What every rank has to know of a request, as OPEN_NUMBERS whole numbers.

    A key is told to the ranks only where the rank that owns the request is to judge it alone.
    """
    seed, stream = 0, 0
    if parallelism is Parallelism.REQUESTS:
        key = sampling.request_key()
        seed, stream = key.seed, key.stream
    return [
        _PARALLELISMS.index(parallelism),
        *(bits_of(getattr(sampling, name)) for name in ("temperature", "top_p", "min_p")),
        bits_of(sampling.repetition_penalty),
        sampling.top_k,
        sampling.max_tokens,
        *(signed(part) for part in (seed % (1 << 64), seed >> 64, stream)),
    ]


def opened(
    columns: ModelColumns, number: int, numbers: Sequence[int], prompt: Sequence[int]
) -> RankedRequest:
    """Begin a request on this rank. Raises ConfigurationError for processors that do not split."""
    temperature, top_p, min_p, penalty = (number_of(bits) for bits in numbers[1:5])
    parallelism = _PARALLELISMS[numbers[0]]
    sampling = Sampling(
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalty,
        top_k=numbers[5],
        max_tokens=numbers[6],
    )
    processors = prepare(columns.model, prompt, sampling_arguments(sampling)).processors
    shard, words = columns.shard, None
    owner = owner_of(number, shard.size)
    if parallelism is Parallelism.REQUESTS:
        processors = RowProcessors(processors)
        low, high, stream = (unsigned(part) for part in numbers[7:])
        if owner == shard.rank:
            words = KeyedWords(RequestKey(low | high << 64, stream))
    else:
        _require_split(processors)
    return RankedRequest(
        number,
        columns.sequence(),
        processors,
        sampling.greedy,
        parallelism,
        owner,
        words,
        list(prompt),
        len(prompt),
    )


def score(columns: ModelColumns, request: RankedRequest, drafts: Sequence[int]) -> Steps[Any]:
    """What this rank has of p at K + 1 positions: its columns (A17), whole scores, or nothing.

    Columns are binary64 weights, on one scale over all ranks; whole scores are a tensor, binary32.
    """
    ids = [*request.committed, *drafts]
    sequence = request.sequence
    sequence.truncate_to_prefix_of(request.committed)
    logits = columns.logits(sequence, ids[sequence.length :], len(drafts) + 1)
    if request.parallelism is Parallelism.VOCABULARY:
        return (yield from _columns_of_p(columns.shard, request, logits, ids))
    whole = yield from _whole_rows(columns, logits)
    if request.owner != columns.shard.rank:
        return np.empty((len(whole), 0))
    with torch.no_grad():
        seen = torch.tensor([ids], device=columns.model.device)
        placed = torch.from_numpy(whole).to(columns.model.device)
        return request.processors.scores(seen, placed)


def _columns_of_p(
    shard: Shard, request: RankedRequest, logits: NDArray[np.float32], ids: Sequence[int]
) -> Steps[NDArray[np.float64]]:
    """Own columns after every processor, in transformers' order."""
    scores = logits
    first = len(ids) - len(logits) + 1
    for each in request.processors:
        if isinstance(each, stock.RepetitionPenaltyLogitsProcessor):
            prefixes = [ids[: first + index] for index in range(len(logits))]
            scores = restrict.penalise(shard, scores, prefixes, each.penalty)
        elif isinstance(each, stock.TemperatureLogitsWarper):
            scores = scores / np.float32(each.temperature)
        elif isinstance(each, stock.TopKLogitsWarper):
            scores = yield from restrict.keep_top_k(shard, scores, each.top_k)
        elif isinstance(each, stock.TopPLogitsWarper):
            scores = yield from restrict.keep_top_p(shard, scores, each.top_p)
        elif isinstance(each, stock.MinPLogitsWarper):
            scores = yield from restrict.keep_min_p(shard, scores, each.min_p)
    return (yield from (point_of(shard, scores) if request.greedy else weights_of(scores)))


def _whole_rows(columns: ModelColumns, logits: NDArray[np.float32]) -> Steps[NDArray[np.float32]]:
    """The logits of all ranks side by side, binary32 (K + 1, width of the model)."""
    shards = columns.shards()
    widest = max(shard.width for shard in shards)
    own = np.zeros((len(logits), widest + widest % 2), np.float32)
    own[:, : logits.shape[1]] = logits
    parts = yield from gather(own.view(np.int64))  # two binary32 numbers in each
    cut = [
        np.ascontiguousarray(part).view(np.float32)[:, : shard.width]
        for part, shard in zip(parts, shards, strict=True)
    ]
    return np.concatenate(cut, axis=1)


def _require_split(processors: Sequence[Any]) -> None:
    for each in processors:
        if type(each) not in _SPLIT or getattr(each, "min_tokens_to_keep", 1) != 1:
            raise ConfigurationError(
                f"{type(each).__name__} needs whole rows of scores, and this target's vocabulary is"
                " split: let each rank own the rows of some requests instead (request-sharded)"
            )
