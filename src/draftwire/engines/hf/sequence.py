"""One sequence inside a model: its tokens and what the model has computed for them."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch

from draftwire.engines.hf.cache import SequenceCache, cache_keyword, cache_layers
from draftwire.engines.hf.states import KeptStates, taking
from draftwire.errors import ConfigurationError, ModelError

_TRIED: Final = (3, 5, 2, 7, 4, 6, 9, 8)
# Largest distance of logits by their size: between rounding in other orders and another function.
_ALIKE: Final = {torch.float16: 0.05, torch.bfloat16: 0.2}
_ALIKE_OTHERWISE: Final = 1e-3
LONGEST_AGAIN: Final = 8  # tokens that are read again in the pass of the next ones


def logits_width(model: Any) -> int:
    """Return the number of columns of the model's logits, padding of the vocabulary included."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)  # a method, or packed, where the head is quantised
    if isinstance(weight, torch.Tensor) and weight.is_floating_point():
        return int(weight.shape[0])
    if isinstance(getattr(head, "out_features", None), int):
        return int(head.out_features)
    return int(model.config.get_text_config(decoder=True).vocab_size)


def context_limit(model: Any) -> int:
    """Return the most tokens the model was made for; 2^20 where its configuration names none."""
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return int(limit) if limit else 1 << 20


def require_usable(model: Any) -> None:
    """Refuse a model that is no decoder alone, has no cache, or whose output is random.

    Raises ModelError for encoder-decoders, training mode, and configurations that transformers
    makes no cache for. What the model does with its cache is tried out: ``self_test``.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder; only decoder-only causal models can be used"
        )
    if model.training:
        raise ModelError(
            f"{name} is in training mode, its dropout is random: call model.eval() first"
        )
    if any(hasattr(module, "_setup_cache") for module in model.modules()):
        raise ModelError(
            f"{name} keeps its state in its own modules, where all sequences share it, and cannot"
            " be rolled back to a shorter prefix"
        )
    try:
        cache_layers(model)
    except Exception as error:  # whatever a configuration that is not ours does
        raise ModelError(
            f"transformers makes no cache for {name} ({type(error).__name__}: {error}), so it"
            " cannot be rolled back to a shorter prefix"
        ) from error


_continuing: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def continues(model: Any) -> bool:
    """Whether a pass over several tokens goes on from the states of those before; tried once.

    Some models (Mamba's first generation) do so in a pass over one token alone, and read several
    as a text of their own: to them tokens are fed one by one.
    """
    found = _continuing.get(model)
    if found is None:
        ids = [each % logits_width(model) for each in _TRIED]
        _continuing[model] = True  # for the passes of this trial
        try:
            one, several = CachedSequence(model), CachedSequence(model)
            begin = len(ids) // 2
            for sequence in (one, several):
                sequence.forward(ids[:begin])
            rows = [torch.cat([one.forward([each]) for each in ids[begin:]])]
            rows.append(several.forward(ids[begin:], len(ids) - begin))
        except BaseException:
            del _continuing[model]
            raise
        apart = float((rows[0] - rows[1]).abs().nan_to_num(0).max())
        size = float(rows[0].nan_to_num(0, 0, 0).abs().max())
        found = apart <= _ALIKE.get(model.dtype, _ALIKE_OTHERWISE) * size
        _continuing[model] = found
    return found


class CachedSequence:
    """What a model has computed for one sequence, extended and rolled back exactly.

    Keys and values are kept for every position, those of a sliding window too (its mask still hides
    what is out of the window). A state that holds no positions is put back to a copy of a shorter
    prefix, and the tokens from there on are read again with the next ones. The state of a prefix
    is what the model computed for it in whatever chunks it came; chunks differ in the last bits of
    the model's own arithmetic.
    """

    def __init__(self, model: Any, adopted: Any = None, tokens: Sequence[int] = ()) -> None:
        """Begin with no tokens, or with the cache of the caller's that has read ``tokens``.

        adopted: is changed in place; see :func:`draftwire.engines.hf.cache.why_not_adopted`.
        """
        self._model = model
        parameters = inspect.signature(model.forward).parameters
        self._cache_keyword = cache_keyword(model) or "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        # As generate does: some models count from elsewhere, or always from zero, when not told.
        self._takes_positions = "position_ids" in parameters
        self._cache = SequenceCache(model, adopted)
        self._tokens: list[int] = list(tokens)
        self.states: KeptStates | None = None  # of what is computed, where that is kept

    @property
    def length(self) -> int:
        """Tokens that the sequence holds."""
        return len(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that the sequence holds."""
        return tuple(self._tokens)

    @property
    def bytes(self) -> int:
        """Memory of what the model has computed."""
        return self._cache.bytes

    def layer_lengths(self) -> list[int]:
        """Return the tokens that each layer holds; all equal :attr:`length` after ``forward``."""
        return self._cache.lengths()

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises ConfigurationError when it holds fewer."""
        if not 0 <= length <= len(self._tokens):
            raise ConfigurationError(
                f"cannot return to {length} tokens: the sequence holds {len(self._tokens)}"
            )
        del self._tokens[length:]
        if length < self._cache.held:
            self._cache.rewind(length)

    def truncate_to_prefix_of(self, ids: Sequence[int]) -> None:
        """Keep the longest prefix shared with ``ids``, but never all of ``ids``.

        The last token is always computed again: its logits are not kept, only its keys.
        """
        limit = min(len(self._tokens), len(ids) - 1)
        if self._tokens[:limit] == list(ids[:limit]):
            shared = limit
        else:
            pairs = zip(self._tokens, ids, strict=False)
            shared = next(at for at, (mine, other) in enumerate(pairs) if mine != other)
        self.truncate(shared)

    def forward(self, tokens: Sequence[int], keep: int = 1) -> torch.Tensor:
        """Feed ``tokens`` (at least one) and return the logits after each of the last ``keep``.

        Returns binary32 (keep, width) on the model's device, owned by the caller. When the
        model raises, the sequence is as it was before.
        """
        feed = [*self._tokens[self._cache.held :], *tokens]
        try:
            if self._cache.keeps_state:
                # Whose logits are asked for may be rolled back: a long feed before them gets a pass
                # of its own, with a copy behind it.
                settled = len(feed) - keep
                if settled > LONGEST_AGAIN:
                    self._pass(feed[:settled], 1)
                    del feed[:settled]
                self._cache.save()
            logits = self._pass(feed, keep)
        except BaseException:
            self._cache.rewind(min(self._cache.held, len(self._tokens)), failed=True)
            raise
        self._tokens.extend(tokens)
        return logits

    def _pass(self, feed: Sequence[int], keep: int) -> torch.Tensor:
        again = self._cache.keeps_state and self._cache.held and len(feed) > 1
        if again and not continues(self._model):
            rows = [self._pass([token], 1) for token in feed]
            return torch.cat(rows[-keep:])
        ids = torch.tensor([list(feed)], dtype=torch.long, device=self._model.device)
        extra: dict[str, Any] = {self._cache_keyword: self._cache.cache, "use_cache": True}
        if self._keeps_logits:
            extra["logits_to_keep"] = keep
        if self._takes_positions:
            begin = self._cache.held
            extra["position_ids"] = torch.arange(begin, begin + len(feed), device=ids.device)[None]
        states = self.states
        with self._cache.computing(), taking(self._model, states) as taken:
            output = self._model(input_ids=ids, return_dict=True, **extra)
            logits: torch.Tensor = output.logits[0, -keep:].to(dtype=torch.float32, copy=True)
        if states is not None:
            states.add(self._cache.held, [taken.rows[layer] for layer in states.layers])
        self._cache.held += len(feed)
        return logits

    def grow(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the keys and values of new tokens in one layer; returns all that it then holds.

        For a pass over several sequences, which ends with ``settle``.
        """
        grown: tuple[torch.Tensor, torch.Tensor] = self._cache.cache.update(keys, values, layer)
        return grown

    def settle(self, tokens: Sequence[int] = ()) -> None:
        """End a pass: its new tokens are held, or, without any, it is as before the pass."""
        self._tokens.extend(tokens)
        self._cache.held += len(tokens)
        if not tokens:
            self._cache.rewind(self._cache.held, failed=True)
