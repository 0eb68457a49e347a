"""A transformers model as target: p at K+1 positions from one forward pass, drafts in place."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftwire.engines.hf.batch import packed
from draftwire.engines.hf.emitted_rows import EmittedRows
from draftwire.engines.hf.identity import (
    checkpoint_identity,
    model_identity,
    real_vocabulary,
    tokenizer_hash,
)
from draftwire.engines.hf.loader import LoadedModel, load_folder
from draftwire.engines.hf.processors import RowProcessors
from draftwire.engines.hf.rope import ModelSequence, exact_context, open_sequence
from draftwire.engines.hf.self_test import require_conforming
from draftwire.engines.hf.sequence import CachedSequence, logits_width, require_usable
from draftwire.engines.hf.states import KeptStates, StateTap, state_tap
from draftwire.errors import ConfigurationError, ModelError
from draftwire.verifier.sampling import Sampling
from draftwire.wire.identity import IdMap
from draftwire.wire.processors import Processor


@dataclass(frozen=True, slots=True)
class Prepared:
    """What ``model.generate`` makes of a call before its first step."""

    processors: Any
    criteria: Any
    config: Any


@dataclass(slots=True)
class HfTargetContext:
    """One request: its KV cache, its processors, and the padding they see before the prompt.

    padding: ids that stand before the prompt in the row that the processors were built for. They
    see them, as in transformers; the model does not.
    """

    sequence: ModelSequence
    processors: RowProcessors
    greedy: bool
    padding: tuple[int, ...] = ()
    rows: EmittedRows = field(default_factory=EmittedRows)

    def score(self, committed: Sequence[int], drafts: Sequence[int]) -> torch.Tensor:
        """Return the scores at the K+1 positions after ``committed``, drafts in place.

        Returns binary32 (K+1, row_width) on the model's device, after every processor.
        """
        new = self.new_tokens(committed, drafts)
        return self.processed(committed, drafts, self.sequence.forward(new, len(drafts) + 1))

    def keep_states(self, tap: StateTap, layers: Sequence[int]) -> None:
        """Keep the states of these layers of what is computed from now on."""
        if self.sequence.states is None or self.sequence.states.layers != tuple(layers):
            self.sequence.states = KeptStates(tap, layers)

    def states(
        self, committed: Sequence[int], first: int, most: int
    ) -> tuple[int, NDArray[np.float32]]:
        """Return the rows of committed tokens; see ``YieldsStates``."""
        kept, read = self.sequence.states, self.sequence.tokens
        assert kept is not None
        first = max(first, kept.first)
        end = last = min(first + most, kept.end, len(read), len(committed) - 1)
        if list(read[first:last]) != list(committed[first:last]):  # a rejected draft is read
            pairs = zip(read[first:last], committed[first:last], strict=True)
            end = next(at for at, (one, other) in enumerate(pairs, first) if one != other)
        return first, kept.rows(first, max(first, end))

    def mirrored(self) -> list[Processor]:
        """Return what a drafter is told of its processors."""
        return self.processors.mirrored(len(self.padding))

    def new_tokens(self, committed: Sequence[int], drafts: Sequence[int]) -> list[int]:
        """Roll the cache back to ``committed``; return what is to be fed then."""
        self.sequence.truncate_to_prefix_of(committed)
        return [*committed, *drafts][self.sequence.length :]

    def processed(
        self, committed: Sequence[int], drafts: Sequence[int], logits: torch.Tensor
    ) -> torch.Tensor:
        """Return the scores that the processors make of the K+1 rows of logits."""
        seen = torch.tensor([[*self.padding, *committed, *drafts]], device=logits.device)
        with torch.no_grad():
            scores: torch.Tensor = self.processors.scores(seen, logits)
        self.rows.scored(len(committed), scores, logits)
        return scores


def score_together(
    model: Any, questions: Sequence[tuple[HfTargetContext, Sequence[int], Sequence[int]]]
) -> torch.Tensor:
    """Return (R, width): the K+1 rows of each context's question, from one pass of ``model``.

    Row by row where the model or one of its sequences cannot be packed into a pass.
    """
    together = packed(model) if len(questions) > 1 else None
    plain = all(isinstance(context.sequence, CachedSequence) for context, _, _ in questions)
    if together is None or not plain:
        return torch.cat([context.score(ids, drafts) for context, ids, drafts in questions])
    feeds = [(each.sequence, each.new_tokens(ids, drafts)) for each, ids, drafts in questions]
    counts = [len(drafts) + 1 for _, _, drafts in questions]
    logits = torch.split(together.forward(feeds, counts), counts)  # type: ignore[arg-type]
    pairs = zip(questions, logits, strict=True)
    return torch.cat([each.processed(ids, drafts, rows) for (each, ids, drafts), rows in pairs])


class HfTargetEngine:
    """Implements :class:`draftwire.verifier.engine.TargetEngine` for a causal language model.

    p is the softmax of the scores after every processor and warper that ``model.generate`` itself
    builds for the same parameters; it differs from stepwise generation only by how the
    model's own arithmetic rounds a pass over K+1 tokens rather than one.

    options: further arguments of ``model.generate`` for every request (``bad_words_ids``,
    ``no_repeat_ngram_size``, ``prefix_allowed_tokens_fn``, ``logits_processor``,
    ``generation_config`` ...).

    A model whose vocabulary is padded beyond its tokenizer's (V18) has rows wider than
    ``vocab_size``: ``row_width`` columns. transformers samples the padded ids too when their logits
    say so, and cutting them off would change p; they have no q, so they can come only from a
    residual, a bonus or a target-only draw, each with the target's own probability.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        identity: bytes | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a model; ``identity`` None hashes its weights once."""
        require_usable(model)
        self._model = model
        self._options = dict(options or {})
        self.device = str(model.device)
        self.row_width = logits_width(model)
        self.vocab_size = real_vocabulary(tokenizer, self.row_width)
        self.max_context = exact_context(model)
        self.identity = model_identity(model) if identity is None else identity
        self.self_test = require_conforming(model, self.vocab_size, self.identity)
        self.tokenizer_hash = tokenizer_hash(tokenizer)
        self.id_map_hash = IdMap.native(self.vocab_size).hash()
        self.end_tokens = end_tokens(self._configuration())

    @classmethod
    def from_folder(
        cls, folder: str | Path, *, device: str = "cpu", options: Mapping[str, Any] | None = None
    ) -> HfTargetEngine:
        """Load a model folder offline. Raises ModelError."""
        return cls.from_loaded(load_folder(folder, device=device), options=options)

    @classmethod
    def from_loaded(
        cls, loaded: LoadedModel, *, options: Mapping[str, Any] | None = None
    ) -> HfTargetEngine:
        """Use a loaded folder; its identity is the folder's."""
        identity = checkpoint_identity(loaded.folder)
        return cls(loaded.model, loaded.tokenizer, identity=identity, options=options)

    def _configuration(self) -> Any:
        """Return the generation configuration of every request, as the options make it."""
        if not self._options.keys() & {"eos_token_id", "generation_config"}:
            return self._model.generation_config
        return prepare(self._model, [0], {"max_new_tokens": 1} | self._options).config

    def open(self, prompt: Sequence[int], sampling: Sampling) -> HfTargetContext:
        """Begin a request with the processors that ``model.generate`` would use for it.

        What ``sampling`` says goes before the model's own generation configuration; what it does
        not speak of (suppressed tokens, forced tokens ...) is taken from there unchanged. Raises
        ConfigurationError when transformers refuses the parameters.
        """
        prepared = prepare(self._model, prompt, {**self._options, **sampling_arguments(sampling)})
        processors = RowProcessors(prepared.processors, ends=self.end_tokens)
        return HfTargetContext(open_sequence(self._model), processors, sampling.greedy)

    @property
    def state_layers(self) -> int:
        """How many layers' states can be had."""
        return state_tap(self._model).layers

    @property
    def state_width(self) -> int:
        """Elements of one layer's state of a token."""
        return state_tap(self._model).width

    def keep_states(self, context: HfTargetContext, layers: Sequence[int]) -> None:
        """Keep the states of these layers of what is computed from now on."""
        context.keep_states(state_tap(self._model), layers)

    def states(
        self, context: HfTargetContext, committed: Sequence[int], first: int, most: int
    ) -> tuple[int, NDArray[np.float32]]:
        """Return the rows of committed tokens; see ``YieldsStates``."""
        return context.states(committed, first, most)

    def settings(self, context: HfTargetContext) -> bytes:
        """Return what the request's processors are and how they are set now."""
        return context.processors.settings()

    def processors(self, context: HfTargetContext) -> list[Processor]:
        """Return those of the request's processors that follow from ids alone, for the drafter."""
        return context.mirrored()

    def score(
        self, context: HfTargetContext, committed: Sequence[int], drafts: Sequence[int]
    ) -> torch.Tensor:
        """Return the scores at the K+1 positions; see :meth:`HfTargetContext.score`."""
        return context.score(committed, drafts)

    def close(self, context: HfTargetContext) -> None:
        """Free what the request holds; it is not used again."""
        context.sequence.truncate(0)


def end_tokens(config: Any) -> frozenset[int]:
    """Return the ids at which a generation configuration ends a text. Raises ModelError."""
    named = config.eos_token_id
    if named is None:
        return frozenset()
    try:
        return frozenset([named] if isinstance(named, int) else map(operator.index, named))
    except TypeError:
        raise ModelError(
            f"the generation configuration ends texts at eos_token_id {named!r}, which is no id"
            " and no list of them"
        ) from None


def prepare(model: Any, prompt: Sequence[int], arguments: Mapping[str, Any]) -> Prepared:
    """Let ``model.generate`` make its own preparations for a call, and take them instead of a text.

    Raises ConfigurationError when transformers refuses the arguments.
    """
    ids = torch.tensor([list(prompt)], dtype=torch.long, device=model.device)
    try:
        prepared = model.generate(
            ids, attention_mask=torch.ones_like(ids), custom_generate=only_prepare, **arguments
        )
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"transformers refuses these parameters: {error}") from error
    assert isinstance(prepared, Prepared)
    return prepared


def only_prepare(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **ignored: Any,
) -> Prepared:
    """In the place of transformers' decoding loop: return what ``generate`` has prepared."""
    return Prepared(logits_processor, stopping_criteria, generation_config)


def sampling_arguments(sampling: Sampling) -> dict[str, Any]:
    """Return what ``model.generate`` is told of a request's own parameters."""
    arguments: dict[str, Any] = {
        "do_sample": not sampling.greedy,
        "repetition_penalty": float(sampling.repetition_penalty),
        "max_new_tokens": sampling.max_tokens,
        "num_beams": 1,
        "num_return_sequences": 1,
    }
    if not sampling.greedy:
        arguments |= {
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
            "top_k": sampling.top_k,
            "min_p": float(sampling.min_p) if sampling.min_p else None,
        }
    return arguments
