"""One sequence inside a model: its tokens and the keys and values computed for them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from draftwire.errors import ConfigurationError, ModelError


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
    """Refuse a model whose state cannot be rolled back, or whose output is random.

    Raises ModelError for encoder-decoders, models that keep a recurrent state, and training mode.
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
    stateful = bool(getattr(model, "_is_stateful", False))
    plain = (DynamicLayer, DynamicSlidingWindowLayer)
    layers = DynamicCache(config=model.config).layers
    if stateful or any(type(layer) not in plain for layer in layers):
        raise ModelError(
            f"{name} keeps a recurrent or compressed state that cannot be rolled back to a shorter "
            "prefix; use a model whose layers are all (sliding-window) attention"
        )


class CachedSequence:
    """The keys and values of one sequence, extended token by token and rolled back exactly.

    Every layer keeps all its keys, those of a sliding window too (its mask still hides what is out
    of the window), so that any shorter prefix can be returned to without computing it again. The
    state of a prefix is what the model computed for it in whatever chunks it came; chunks differ in
    the last bits of the model's own arithmetic.
    """

    def __init__(self, model: Any) -> None:
        """Begin with no tokens."""
        self._model = model
        parameters = inspect.signature(model.forward).parameters
        # transformers 5 renamed the keyword on the way.
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        self._cache = DynamicCache()
        self._tokens: list[int] = []

    @property
    def length(self) -> int:
        """Tokens whose keys and values are held."""
        return len(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose keys and values are held."""
        return tuple(self._tokens)

    def layer_lengths(self) -> list[int]:
        """Return the number of positions that each layer holds; all equal :attr:`length`."""
        return [layer.get_seq_length() for layer in self._cache.layers]

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises ConfigurationError when it holds fewer."""
        if not 0 <= length <= len(self._tokens):
            raise ConfigurationError(
                f"cannot return to {length} tokens: the sequence holds {len(self._tokens)}"
            )
        del self._tokens[length:]
        self._crop()

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
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self._model.device)
        extra: dict[str, Any] = {self._cache_keyword: self._cache, "use_cache": True}
        if self._keeps_logits:
            extra["logits_to_keep"] = keep
        try:
            with torch.inference_mode():
                output = self._model(input_ids=ids, return_dict=True, **extra)
                logits: torch.Tensor = output.logits[0, -keep:].to(dtype=torch.float32, copy=True)
        except BaseException:
            self._crop()  # some layers may have taken the tokens and others not
            raise
        self._tokens.extend(tokens)
        return logits

    def grow(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the keys and values of new tokens in one layer; returns all that it then holds.

        For a pass over several sequences, which ends with ``settle``.
        """
        grown: tuple[torch.Tensor, torch.Tensor] = self._cache.update(keys, values, layer)
        return grown

    def settle(self, tokens: Sequence[int] = ()) -> None:
        """End a pass: its new tokens are held, or, without any, it is as before the pass."""
        self._tokens.extend(tokens)
        if not tokens:
            self._crop()

    def _crop(self) -> None:
        if not self._tokens:
            self._cache = DynamicCache()
            return
        for layer in self._cache.layers:
            excess = layer.get_seq_length() - len(self._tokens)
            if excess > 0:
                layer.crop(-excess)
