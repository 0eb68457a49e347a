"""transformers' own logits processors, called for one row at hypothetical prefixes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from transformers.generation import logits_process as stock

from draftwire.engines.hf.fork import fork
from draftwire.engines.hf.mirrored import mirrored
from draftwire.engines.hf.outside_state import outside_state
from draftwire.errors import ConfigurationError
from draftwire.verifier.context import object_settings
from draftwire.wire.processors import Processor

# They keep a KV cache, a call counter or a history of their own, so what they answer depends on the
# calls before and not on the prefix alone.
STATEFUL = (
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "DiaEOSDelayPatternLogitsProcessor",
    "WhisperNoSpeechDetection",
)


class RowProcessors:
    """The processors of one row: the scores that transformers would sample from at any prefix.

    A draft that is not accepted yet is put into the prefix, so a processor is asked about prefixes
    that may never become text. transformers' own are functions of the prefix and the scores, but
    for a few that are refused by name when this is built. A foreign one may keep state, as matchers
    of grammars do: it is called along the committed text, once for each place, in order, as
    ``generate`` calls it; at drafted places a copy of it is asked (:func:`draftwire.engines.hf.fork
    .fork`). One that cannot be copied has to be a function of the prefix too. In the first calls
    the question behind the committed text is asked of a second copy, and the processors are refused
    when the answers differ. State that is in neither the object nor the prefix, and shows in
    neither of these answers, cannot be detected.
    """

    def __init__(
        self,
        processors: Any,
        *,
        row: int = 0,
        rows: int = 1,
        rows_each_prompt: int = 1,
        ends: Collection[int] = (),
        own: bool = False,
    ) -> None:
        """Prepare ``processors``, a LogitsProcessorList built for ``rows`` rows, for one of them.

        rows_each_prompt: ``num_return_sequences``. ends: ids behind which no text goes on, so that
        nothing is asked there of a foreign processor. own: call the very objects of a call of one
        row, not copies of them, at the places of its text. Raises ConfigurationError.
        """
        for processor in processors:
            if type(processor).__name__ in STATEFUL:
                raise ConfigurationError(
                    f"{type(processor).__name__} keeps state between calls and cannot be evaluated "
                    "at drafted prefixes: run without it, or without a drafter"
                )
        self._ends = frozenset(ends)
        self._list = stock.LogitsProcessorList(
            processor if rows == 1 else _of_row(processor, row, rows, rows_each_prompt)
            for processor in processors
        )
        self._foreign = any(map(_is_foreign, self._list))
        self._copied = [_is_foreign(each) and _may_fork(each) for each in self._list]
        if not own or rows > 1:
            self._list = self._fork()
        self._stateful = any(self._copied)
        self._unchecked = {False, True} if self._foreign else set[bool]()
        self._settings = self._seen_settings = self._settings_now()
        self._seen: torch.Tensor | None = None  # the last prefix of the text that was asked about
        self._logits: torch.Tensor = torch.empty(0)  # what was scored behind it, drafts in place
        self._scores: torch.Tensor = torch.empty(0)
        self._answered = 0  # rows of it that were asked and that a text can reach
        self._has_changed = False  # whether a call was seen to change a processor

    def settings(self) -> bytes:
        """Return the types and plain settings of all processors, as they are now.

        What a stateful one has changed in itself when it was called is state and is left out.
        """
        now = self._settings_now()
        if now != self._seen_settings:
            self._settings, self._seen_settings = self._settings + now, now
        return self._settings

    def mirrored(self, padding: int) -> list[Processor]:
        """Return what a drafter is told of them; padding: ids that they see before the prompt."""
        return mirrored(self._list, padding)

    def scores(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the processed scores at each of the last positions of one sequence.

        ids: int64 (1, n), the whole sequence with the drafts in place. logits: binary32 (k, width),
        k <= n: row i follows ``ids[:, :n - k + 1 + i]``. Returns binary32 (k, width); where a
        foreign one raised at a drafted place the rows are NaN, or left as they are if no text can
        come there (behind a draft that the row before forbids, or an end). Raises
        ConfigurationError for a processor whose answer changes when it is asked again.
        """
        first = ids.shape[1] - logits.shape[0] + 1
        check = bool(self._unchecked) and (logits.shape[0] > 1) in self._unchecked
        if self._seen is not None and torch.equal(ids[:, :first], self._seen):
            check = False  # asked already: the answer is kept
        spare = None
        if not self._foreign:
            return self._plain_scores(ids, logits, first)
        self._catch_up(ids, first)
        if check:
            spare = self._fork() if self._stateful else self._list
        scores = self._driven_scores(ids, logits, first)
        if spare is not None:
            self._unchecked -= {False, logits.shape[0] > 1}
            self._check_repeats(spare, ids[:, :first], logits[:1], scores[:1])
        return scores

    def _plain_scores(self, ids: torch.Tensor, logits: torch.Tensor, first: int) -> torch.Tensor:
        scores = torch.empty_like(logits)
        for index in range(logits.shape[0]):
            row = logits[index : index + 1].clone()  # processors may write into it
            scores[index] = self._list(ids[:, : first + index], row)[0]
        return scores

    def _catch_up(self, ids: torch.Tensor, first: int) -> None:
        """Call the processors at the places that were committed since, all but the last."""
        if self._seen is None or not self._stateful:
            return
        seen = self._seen.shape[1]
        follows = seen <= first and torch.equal(ids[:, :seen], self._seen)
        if not follows or first - seen > self._answered:
            if self._has_changed:
                raise ConfigurationError(
                    f"a stateful logits processor follows one text: {self._who()} cannot be asked "
                    "about another prefix; begin a request for it"
                )
            return
        for index in range(1, first - seen):
            row = self._logits[index : index + 1]
            answer = self._asked(ids[:, : seen + index], row)
            if not _same(answer, self._scores[index : index + 1]):
                raise ConfigurationError(f"{self._names()} than its copy did about the same prefix")

    def _driven_scores(self, ids: torch.Tensor, logits: torch.Tensor, first: int) -> torch.Tensor:
        scores = logits.clone()
        prefix = ids[:, :first]
        if self._stateful and self._seen is not None and torch.equal(prefix, self._seen):
            scores[0] = self._scores[0]
        else:
            scores[0] = self._asked(prefix, logits[:1])[0]
        self._answered = 1
        dead, copies = False, None
        for index in range(1, logits.shape[0]):
            draft = int(ids[0, first + index - 1])
            dead = dead or draft in self._ends or bool(scores[index - 1, draft] == -torch.inf)
            try:
                if copies is None:
                    copies = self._fork()
                row = logits[index : index + 1].clone()
                scores[index] = copies(ids[:, : first + index], row)[0]
            except Exception:  # raised again at a place of the text, should it come there
                if not dead:
                    scores[index:] = torch.nan
                break
            self._answered += not dead
        self._seen, self._logits, self._scores = prefix, logits, scores
        return scores

    def _asked(self, ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """The answer of the text's own processors at its next place, in binary32."""
        before = self._state_seen()
        answer: torch.Tensor = self._list(ids, row.clone()).to(row.dtype)
        self._has_changed = self._has_changed or self._state_seen() != before
        self._seen_settings = self._settings_now()
        return answer

    def _fork(self) -> Any:
        return stock.LogitsProcessorList(
            fork(each) if copied else each
            for each, copied in zip(self._list, self._copied, strict=True)
        )

    def _settings_now(self) -> bytes:
        return object_settings(*self._list)

    def _state_seen(self) -> bytes:
        """What of the copied processors' state shows in their attributes."""
        pairs = zip(self._list, self._copied, strict=True)
        return object_settings(*(each for each, copied in pairs if copied))

    def _check_repeats(
        self, processors: Any, ids: torch.Tensor, logits: torch.Tensor, answer: torch.Tensor
    ) -> None:
        before = [outside_state(each) for each in self._list if _is_foreign(each)]
        try:
            again = processors(ids, logits.clone()).to(answer.dtype)
        except Exception as error:
            raise ConfigurationError(f"{self._names()} when asked twice: {error}") from error
        if not _same(again, answer):
            raise ConfigurationError(f"{self._names()} when asked twice about the same prefix")
        if before != [outside_state(each) for each in self._list if _is_foreign(each)]:
            raise ConfigurationError(f"{self._names()}, or may: it changes what stands outside it")

    def _who(self) -> str:
        return ", ".join(type(each).__name__ for each in self._list if _is_foreign(each))

    def _names(self) -> str:
        return (
            "the logits processors must be functions of the prefix alone, or keep their state in "
            "themselves where copy.deepcopy or a fork() copies it, because they are asked about "
            f"drafts that may be rejected; one of {self._who()} answers differently"
        )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _is_foreign(processor: Any) -> bool:
    """Whether what it does is not transformers' own, so that it may keep state."""
    constrained = isinstance(processor, stock.PrefixConstrainedLogitsProcessor)
    return constrained or not type(processor).__module__.startswith("transformers.")


def _may_fork(processor: Any) -> bool:
    try:
        fork(processor)
    except Exception:  # whatever its parts raise
        return False
    return True


def _of_row(processor: Any, row: int, rows: int, rows_each_prompt: int) -> Any:
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
    elif kind.__module__.startswith("xgrammar."):  # a grammar for all rows, or one for each
        processor = copy.copy(processor)
        if len(processor.compiled_grammars) == rows:
            processor.compiled_grammars = processor.compiled_grammars[row : row + 1]
    return processor
