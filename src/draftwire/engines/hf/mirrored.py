"""transformers' own logits processors, as far as they are public functions of ids (P34)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from transformers.generation import logits_process as stock

from draftwire.wire.processors import (
    ALWAYS,
    Allow,
    Bias,
    NoRepeatNgram,
    Processor,
    Repetition,
    Sequences,
    Suppress,
)


def mirrored(processors: Iterable[Any], padding: int = 0) -> list[Processor]:
    """Return what a drafter is told of processors of one row, in their order.

    padding: ids before the prompt that they were built for; positions of what is returned count
    from the prompt's first id. Left out: what knows more than ids (a grammar, a function, hidden
    state, a model) and what the policy of a proposal says (temperature, top-k, top-p, min-p).
    """
    found: list[Processor] = []
    for each in processors:
        said = _SAID.get(type(each))
        if said is not None:
            found += said(each, padding)
    return found


def _repetition(each: Any, padding: int) -> Iterable[Processor]:
    ignored = each.prompt_ignore_length
    ignored = int(ignored[0]) if isinstance(ignored, torch.Tensor) else ignored or 0
    yield Repetition(max(ignored - padding, 0), each.penalty)


def _no_repeat(each: Any, padding: int) -> Iterable[Processor]:
    yield NoRepeatNgram(0, each.ngram_size)


def _sequences(each: Any, padding: int) -> Iterable[Processor]:
    """Single ids, which no text decides, and sequences; transformers adds the biases of both."""
    biases: dict[tuple[int, ...], float] = each.sequence_bias
    single = {ids[0]: bias for ids, bias in biases.items() if len(ids) == 1}
    longer = tuple((bias, ids) for ids, bias in biases.items() if len(ids) > 1)
    if single:
        yield Bias(tuple(single), tuple(single.values()))
    if longer:
        yield Sequences(0, longer)


def _suppressed(each: Any, padding: int) -> Iterable[Processor]:
    yield Suppress(0, ALWAYS, _ids(each.suppress_tokens))


def _suppressed_at_begin(each: Any, padding: int) -> Iterable[Processor]:
    begin = each.begin_index - padding
    yield Suppress(begin, begin + 1, _ids(each.begin_suppress_tokens))


def _min_length(each: Any, padding: int) -> Iterable[Processor]:
    yield Suppress(0, each.min_length - padding, _ids(each.eos_token_id))


def _min_new_tokens(each: Any, padding: int) -> Iterable[Processor]:
    end = each.prompt_length_to_skip + each.min_new_tokens - padding
    yield Suppress(0, end, _ids(each.eos_token_id))


def _forced_bos(each: Any, padding: int) -> Iterable[Processor]:
    begin = 1 - padding
    yield Allow(begin, begin + 1, (each.bos_token_id,))


def _forced_eos(each: Any, padding: int) -> Iterable[Processor]:
    begin = each.max_length - 1 - padding
    yield Allow(begin, begin + 1, _ids(each.eos_token_id))


def _ids(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(int, tensor.reshape(-1).tolist()))


_SAID: Final[dict[type[Any], Callable[[Any, int], Iterable[Processor]]]] = {
    stock.RepetitionPenaltyLogitsProcessor: _repetition,
    stock.NoRepeatNGramLogitsProcessor: _no_repeat,
    stock.SequenceBiasLogitsProcessor: _sequences,
    stock.NoBadWordsLogitsProcessor: _sequences,
    stock.SuppressTokensLogitsProcessor: _suppressed,
    stock.SuppressTokensAtBeginLogitsProcessor: _suppressed_at_begin,
    stock.MinLengthLogitsProcessor: _min_length,
    stock.MinNewTokensLengthLogitsProcessor: _min_new_tokens,
    stock.ForcedBOSTokenLogitsProcessor: _forced_bos,
    stock.ForcedEOSTokenLogitsProcessor: _forced_eos,
}
"""By their very type: what a subclass does is not known."""
