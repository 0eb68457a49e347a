"""transformers' own logits processors, called for one row at hypothetical prefixes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers.generation import logits_process as stock

from draftwire.errors import ConfigurationError
from draftwire.verifier.context import object_settings

# They keep a KV cache, a call counter or a history of their own, so what they answer depends on the
# calls before and not on the prefix alone.
STATEFUL = (
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "DiaEOSDelayPatternLogitsProcessor",
    "WhisperNoSpeechDetection",
)
REPEATED_CHECKS = 2


class RowProcessors:
    """The processors of one row: the scores that transformers would sample from at any prefix.

    A draft that is not accepted yet is put into the prefix, so a processor is asked about prefixes
    that may never become text, and about shorter ones again later. It must be a function of the
    prefix and the scores alone. transformers' own stateful ones are refused when this is built;
    others are asked twice on their first calls, and refused when the answers differ (or when they
    raise on being asked again). A processor that hides its state beyond that cannot be detected.
    """

    def __init__(
        self, processors: Any, *, row: int = 0, rows: int = 1, rows_each_prompt: int = 1
    ) -> None:
        """Prepare ``processors``, a LogitsProcessorList built for ``rows`` rows, for one of them.

        rows_each_prompt: ``num_return_sequences``. Raises ConfigurationError for stateful ones.
        """
        for processor in processors:
            if type(processor).__name__ in STATEFUL:
                raise ConfigurationError(
                    f"{type(processor).__name__} keeps state between calls and cannot be evaluated "
                    "at drafted prefixes: run without it, or without a drafter"
                )
        self._list = stock.LogitsProcessorList(
            processor if rows == 1 else _of_row(processor, row, rows_each_prompt)
            for processor in processors
        )
        foreign = any(
            not type(processor).__module__.startswith("transformers.") for processor in processors
        )
        constrained = any(
            isinstance(processor, stock.PrefixConstrainedLogitsProcessor)
            for processor in processors
        )
        self._checks_left = REPEATED_CHECKS if foreign or constrained else 0

    def settings(self) -> bytes:
        """Return the types and plain settings of all processors, as they are now."""
        return object_settings(*self._list)

    def scores(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the processed scores at each of the last positions of one sequence.

        ids: int64 (1, n), the whole sequence with the drafts in place. logits: binary32 (k, width),
        k <= n: row i follows ``ids[:, :n - k + 1 + i]``. Returns binary32 (k, width). Raises
        ConfigurationError for a processor whose answer changes when it is asked again.
        """
        first = ids.shape[1] - logits.shape[0] + 1
        scores = torch.empty_like(logits)
        for index in range(logits.shape[0]):
            row = logits[index : index + 1].clone()  # processors may write into it
            scores[index] = self._list(ids[:, : first + index], row)[0]
        if self._checks_left:
            self._checks_left -= 1
            self._check_repeats(ids[:, :first], logits[:1], scores[:1])
        return scores

    def _check_repeats(self, ids: torch.Tensor, logits: torch.Tensor, answer: torch.Tensor) -> None:
        try:
            again = self._list(ids, logits.clone()).to(answer.dtype)
        except Exception as error:
            raise ConfigurationError(f"{self._names()} when asked twice: {error}") from error
        if not ((again == answer) | (again.isnan() & answer.isnan())).all():
            raise ConfigurationError(f"{self._names()} when asked twice about the same prefix")

    def _names(self) -> str:
        names = ", ".join(type(processor).__name__ for processor in self._list)
        return (
            "the logits processors must be functions of the prefix alone, because they are asked "
            f"about drafts that may be rejected; one of {names} answers differently"
        )


def _of_row(processor: Any, row: int, rows_each_prompt: int) -> Any:
    """Return a copy of a processor that was built for a whole batch, for one row of it."""
    kind = type(processor)
    prompt = row // rows_each_prompt
    if kind is stock.RepetitionPenaltyLogitsProcessor:
        if isinstance(processor.prompt_ignore_length, torch.Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = processor.prompt_ignore_length[row : row + 1]
    elif kind is stock.PrefixConstrainedLogitsProcessor:
        allowed: Callable[[int, torch.Tensor], list[int]] = processor._prefix_allowed_tokens_fn
        processor = kind(lambda _, ids: allowed(prompt, ids), 1)
    elif kind is stock.EncoderRepetitionPenaltyLogitsProcessor:
        processor = copy.copy(processor)
        processor.encoder_input_ids = processor.encoder_input_ids[prompt : prompt + 1]
    elif kind is stock.EncoderNoRepeatNGramLogitsProcessor:
        processor = copy.copy(processor)
        processor.batch_size = 1
        processor.generated_ngrams = processor.generated_ngrams[prompt : prompt + 1]
    return processor
