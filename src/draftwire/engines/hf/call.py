"""One call of ``model.generate``, taken apart into rows that can each be a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache
from transformers.generation import GenerationMode
from transformers.generation.stopping_criteria import MaxLengthCriteria

from draftwire.engines.hf.cache import held_tokens, holds_tokens, why_not_adopted
from draftwire.engines.hf.emitted_rows import EmittedRows
from draftwire.engines.hf.processors import RowProcessors
from draftwire.engines.hf.rope import (
    ModelSequence,
    open_sequence,
    require_within_border,
    rope_border,
)
from draftwire.engines.hf.self_test import require_conforming
from draftwire.engines.hf.sequence import CachedSequence, logits_width, require_usable
from draftwire.engines.hf.states import StateTap, state_tap
from draftwire.engines.hf.target import HfTargetContext, end_tokens
from draftwire.errors import ConfigurationError, PairMismatchError
from draftwire.verifier.generate import Generation
from draftwire.verifier.policy import policy_like
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.processors import Processor
from draftwire.wire.registry import Layout

DEFAULT_DEPTH = 5
DEFAULT_SUPPORT = 32

REFUSED_OUTPUTS = ("output_attentions", "output_hidden_states")


class RowTarget:
    """The target of one row: implements TargetEngine with processors that generate has built.

    It is a request and not a program, so its hashes are empty: the drafter's HELLO has compared
    those of the model.
    """

    identity = tokenizer_hash = id_map_hash = bytes(32)
    end_tokens: frozenset[int] = frozenset()  # generate's stopping criteria hold them

    def __init__(
        self,
        context: HfTargetContext,
        vocab_size: int,
        max_context: int,
        *,
        tap: StateTap,
        cache: Any = None,
    ) -> None:
        """Wrap the row's context. cache: that of the caller, to whom it goes back."""
        self._tap = tap
        self.cache = cache
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.context = context

    @property
    def greedy(self) -> bool:
        """Whether p is a point mass everywhere."""
        return self.context.greedy

    def open(self, prompt: Sequence[int], sampling: Sampling) -> HfTargetContext:
        """Return the row's one context."""
        return self.context

    @property
    def state_layers(self) -> int:
        """How many layers' states can be had."""
        return self._tap.layers

    @property
    def state_width(self) -> int:
        """Elements of one layer's state of a token."""
        return self._tap.width

    def keep_states(self, context: HfTargetContext, layers: Sequence[int]) -> None:
        """Keep the states of these layers of what is computed from now on."""
        context.keep_states(self._tap, layers)

    def states(
        self, context: HfTargetContext, committed: Sequence[int], first: int, most: int
    ) -> tuple[int, NDArray[np.float32]]:
        """Return the rows of committed tokens; see ``YieldsStates``."""
        return context.states(committed, first, most)

    def settings(self, context: HfTargetContext) -> bytes:
        """Return what the call's processors are and how they are set now."""
        return context.processors.settings()

    def processors(self, context: HfTargetContext) -> list[Processor]:
        """Return those of the call's processors that follow from ids alone, for the drafter."""
        return context.mirrored()

    def score(
        self, context: HfTargetContext, committed: Sequence[int], drafts: Sequence[int]
    ) -> torch.Tensor:
        """Return the scores of p at the K+1 positions after ``committed``, drafts in place."""
        return context.score(committed, drafts)

    def close(self, context: HfTargetContext) -> None:
        """Free what the request holds, but for what goes back to the caller."""
        if self.cache is None:
            context.sequence.truncate(0)


@dataclass(slots=True)
class Row:
    """One row of the batch. prompt: its ids without padding. max_tokens: most ids of its text."""

    target: RowTarget
    prompt: list[int]
    max_tokens: int
    criteria: Any
    seen: torch.Tensor

    def ends(self, tokens: Sequence[int]) -> bool:
        """Ask generate's stopping criteria whether the text ends with its last token."""
        last = torch.tensor([[tokens[-1]]], dtype=self.seen.dtype, device=self.seen.device)
        self.seen = torch.cat([self.seen, last], dim=-1)
        return bool(self.criteria(self.seen, None).all())

    def leave(self, text: Generation[HfTargetContext]) -> None:
        """Leave in the caller's cache what generate does: all of the text but its last token."""
        if self.target.cache is not None:
            sequence = self.target.context.sequence
            read = len(self.prompt) + max(len(text.tokens) - 1, 0)
            sequence.truncate(min(read, sequence.length))


def require_decodable(model: Any, config: Any) -> None:
    """Refuse a model that is none of ours, and a decoding that takes more than one path."""
    require_usable(model)
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        raise ConfigurationError(
            f"speculation samples or takes the best token; {mode.value} is another decoding: "
            "drop num_beams and the like, or custom_generate"
        )


def require_supported(
    model: Any,
    input_ids: torch.Tensor,
    config: Any,
    criteria: Any,
    model_kwargs: Mapping[str, Any],
    streamer: Any,
) -> None:
    """Refuse a call that cannot be honoured to the letter, saying which argument to drop."""
    require_conforming(model, logits_width(model))
    require_within_border(model, config.max_length)
    wanted = [name for name in REFUSED_OUTPUTS if getattr(config, name, None)]
    if wanted:
        raise ConfigurationError(f"a speculative text has no {', '.join(wanted)}: drop them")
    if config.cache_implementation not in (None, "dynamic"):
        raise ConfigurationError(
            f"cache_implementation={config.cache_implementation!r} cannot be rolled back: drop it"
        )
    if input_ids.shape[0] > 1:
        _require_batchable(config, criteria, streamer)


def _require_batchable(config: Any, criteria: Any, streamer: Any) -> None:
    if streamer is not None:
        raise ConfigurationError("rows are made one after another: a streamer takes only one row")
    uneven = any(not isinstance(criterion, MaxLengthCriteria) for criterion in criteria)
    if uneven and config._pad_token_tensor is None:
        raise ConfigurationError("rows may end at different lengths: set pad_token_id")


def cache_of(
    model: Any, input_ids: torch.Tensor, config: Any, model_kwargs: Mapping[str, Any]
) -> Any:
    """Return the caller's cache, or a new one that is to be returned, or None for neither.

    One row's cache is returned with ``return_dict_in_generate``, where its layers keep every
    position. Raises ConfigurationError for one of the caller's that cannot be gone on from.
    """
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    if cache is None:
        return None
    if getattr(cache, "_is_user_defined", False) or holds_tokens(cache):
        why = _why_no_cache(model, input_ids, config, model_kwargs, cache)
        if why is not None:
            raise ConfigurationError(
                f"a speculative text cannot go on from this cache: {why}; pass a DynamicCache()"
                " of one row without padding, or pass no cache"
            )
        return cache
    if not config.return_dict_in_generate:
        return None
    cache = DynamicCache()
    return None if _why_no_cache(model, input_ids, config, model_kwargs, cache) else cache


def _why_no_cache(
    model: Any, input_ids: torch.Tensor, config: Any, model_kwargs: Mapping[str, Any], cache: Any
) -> str | None:
    why = why_not_adopted(model, cache)
    if why is not None:
        return why
    border, mask = rope_border(model), model_kwargs.get("attention_mask")
    length = int(input_ids.shape[1])
    if input_ids.shape[0] > 1:
        return f"the call has {input_ids.shape[0]} rows"
    if mask is not None and not bool(mask.all()):
        return "the prompt is padded"
    if border is not None and border.read_again:
        return "this model reads a text twice, with two rope tables"
    whole = getattr(config, "_mask_length", length) if mask is None else mask.shape[-1]
    if whole != length or held_tokens(cache) > length:
        return f"it holds {held_tokens(cache)} tokens and input_ids {length}: give all ids"
    return None


def rows_of(
    model: Any,
    input_ids: torch.Tensor,
    processors: Any,
    criteria: Any,
    config: Any,
    model_kwargs: Mapping[str, Any],
    vocab_size: int | None,
    cache: Any = None,
) -> list[Row]:
    """Take a batch apart. vocab_size: V that the drafter shares; None = all columns of the logits.

    cache: the only row's, of ``cache_of``; it has read the first of its ids. Raises
    ConfigurationError for padding that is not on the left, and for positions that are not the
    usual ones.
    """
    width = logits_width(model)
    if vocab_size is not None and vocab_size > width:
        raise PairMismatchError(
            "vocab_size", f"the drafter was set up for {vocab_size} tokens, the model has {width}"
        )
    count, length = input_ids.shape
    starts = _starts(input_ids, model_kwargs.get("attention_mask"))
    _require_usual_positions(starts, length, model_kwargs.get("position_ids"))
    rows = []
    for index, start in enumerate(starts):
        ids = input_ids[index].tolist()
        context = HfTargetContext(
            _sequence(model, cache, ids),
            RowProcessors(
                processors,
                row=index,
                rows=count,
                rows_each_prompt=config.num_return_sequences or 1,
                ends=end_tokens(config),
                own=True,
            ),
            greedy=not config.do_sample,
            padding=tuple(ids[:start]),
            rows=EmittedRows(
                bool(config.return_dict_in_generate and config.output_scores),
                bool(config.return_dict_in_generate and config.output_logits),
            ),
        )
        target = RowTarget(
            context, vocab_size or width, config.max_length + 1, tap=state_tap(model), cache=cache
        )
        seen = input_ids[index : index + 1]
        rows.append(Row(target, ids[start:], config.max_length - length, criteria, seen))
    return rows


def _sequence(model: Any, cache: Any, ids: Sequence[int]) -> ModelSequence:
    if cache is None:
        return open_sequence(model)
    return CachedSequence(model, cache, ids[: held_tokens(cache)])


def _starts(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """Return where the prompt of each row begins, after its left padding."""
    count, length = input_ids.shape
    if mask is None:
        return [0] * count
    if mask.shape != input_ids.shape:
        raise ConfigurationError("attention_mask must have the shape of input_ids")
    starts = [length - int(row.sum()) for row in mask != 0]
    for start, row in zip(starts, mask != 0, strict=True):
        if start == length or not bool(row[start:].all()):
            raise ConfigurationError(
                "attention_mask may hide only what is left of a prompt: set padding_side='left'"
            )
    return starts


def _require_usual_positions(
    starts: Sequence[int], length: int, positions: torch.Tensor | None
) -> None:
    if positions is None:
        return
    for index, start in enumerate(starts):
        row = positions[index if positions.shape[0] > 1 else 0]
        if row.ndim != 1 or row[start:].tolist() != list(range(length - start)):
            raise ConfigurationError("position_ids must count every prompt from 0: drop them")


def policy_for(config: Any, vocab_size: int) -> ProposalPolicy:
    """Return how proposals are made by default: the call's own restrictions hold for q as well."""
    support = min(DEFAULT_SUPPORT, vocab_size)
    if not config.do_sample:
        return ProposalPolicy(Layout.SPARSE, DEFAULT_DEPTH, 0.0, support)
    return policy_like(
        Layout.SPARSE,
        DEFAULT_DEPTH,
        support,
        vocab_size,
        temperature=1.0 if config.temperature is None else float(config.temperature),
        top_k=config.top_k or 0,
        top_p=1.0 if config.top_p is None else float(config.top_p),
        min_p=config.min_p or 0.0,
    )
