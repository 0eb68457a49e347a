"""What a request's parameters do to its rows, as far as it follows from ids alone (P34)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftwire.wire.processors import (
    ALWAYS,
    Allow,
    Bias,
    Occurrence,
    Processor,
    Repetition,
    Sequences,
    Suppress,
)


def mirrored(params: Any, prompt_length: int) -> Iterator[Processor]:
    """Yield what a drafter is told of a request's SamplingParams, in the order of vLLM's sampler.

    Presence and frequency penalties and bad words look at the output alone, the repetition penalty
    at the prompt as well. Grammars are not said.
    """
    if params.allowed_token_ids:
        yield Allow(0, ALWAYS, tuple(params.allowed_token_ids))
    if params.bad_words_token_ids:
        banned = tuple((float("-inf"), tuple(ids)) for ids in params.bad_words_token_ids)
        yield Sequences(prompt_length, banned)
    if params.min_tokens and params.all_stop_token_ids:
        yield Suppress(0, prompt_length + params.min_tokens, tuple(params.all_stop_token_ids))
    if params.logit_bias:
        yield Bias(tuple(params.logit_bias), tuple(params.logit_bias.values()))
    if params.repetition_penalty != 1:
        yield Repetition(0, params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        yield Occurrence(prompt_length, params.presence_penalty, params.frequency_penalty)
