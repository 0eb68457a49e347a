"""What a model keeps of one sequence, and how each of its layers returns to a shorter prefix.

The layers are asked, not listed. Keys and values are cropped. What holds no positions (a recurrent
or convolution state, compressed attention) is copied at a few prefixes, and a rollback takes the
last copy that is not too long.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
)

_KEYWORDS: Final = ("cache", "past_key_values")  # transformers 5 renamed it on the way
_POSITIONS: Final = frozenset({"keys", "values"})  # beside a state in the same layer
_APART: Final = 8  # tokens between two copies
_FARTHEST: Final = 64  # ... once rollbacks have gone behind the oldest
_COPIES: Final = 3


def cache_keyword(model: Any) -> str | None:
    """Return the argument under which a model takes a cache, or None where it takes none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in _KEYWORDS if name in parameters), None)


def cache_layers(model: Any) -> list[Any]:
    """Return a new layer of a cache for each layer of a model, attention with every position.

    A plain sliding window keeps all its keys too (its mask still hides what is out of the window):
    so any shorter prefix can be returned to without computing it again.
    """
    return [_unbounded(layer) for layer in DynamicCache(config=model.config).layers]


def _unbounded(layer: Any) -> Any:
    if type(layer) is DynamicSlidingWindowLayer:
        return DynamicLayer()
    if type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
        return LinearAttentionAndFullAttentionLayer(layer.number_of_states)
    return layer


def crops(layer: Any) -> bool:
    """Whether a new layer can return to any shorter prefix by forgetting positions.

    One that has to record its past for that, before it is asked to, holds a state or a window.
    """
    return bool(layer.is_croppable) and not hasattr(layer, "activate_past_recording")


def holds_tokens(cache: Any) -> bool:
    """Whether a cache, ours or not, has read something."""
    layers = getattr(cache, "layers", None)
    if layers is None:
        return bool(cache.get_seq_length())
    counting = [layer for layer in layers if hasattr(layer, "get_seq_length")]
    states = [layer for layer in layers if hasattr(layer, "has_previous_state")]
    return any(layer.get_seq_length() for layer in counting) or any(
        any(layer.has_previous_state.values()) for layer in states
    )


def why_not_adopted(model: Any, cache: Any) -> str | None:
    """Return why a sequence of ``model`` cannot go on from a cache of the caller's, or None.

    It has to hold one row, with keys and values of every position in every layer.
    """
    layers = getattr(cache, "layers", None)
    if type(cache) is not DynamicCache or layers is None or getattr(cache, "offloading", False):
        return f"a {type(cache).__name__} or its offloading is none that is cropped here"
    if any(type(layer) is not DynamicLayer for layer in (*layers, *cache_layers(model))):
        return "it has layers that hold a window or a state, which forget positions"
    filled = [layer for layer in layers if layer.get_seq_length()]
    if any(layer.keys.shape[0] != 1 for layer in filled):
        return "it holds several rows"
    if len({layer.get_seq_length() for layer in filled}) > 1:
        return "its layers hold different numbers of tokens"
    return None


def held_tokens(cache: Any) -> int:
    """Return the tokens that a cache which can be adopted holds; a layer may share another's."""
    return max((int(layer.get_seq_length()) for layer in cache.layers), default=0)


@dataclass(frozen=True, slots=True)
class Copy:
    """The states of the layers that do not crop, after ``length`` tokens."""

    length: int
    states: list[dict[str, Any]]


class SequenceCache:
    """The cache of one sequence in a model, with copies of what does not crop.

    cache: what the model is given. held: tokens that it holds. states: its layers that do not crop.
    copies: of their states, the shortest prefix first; at most ``_COPIES``. Keys and values are not
    copied.
    """

    def __init__(self, model: Any, adopted: Any = None) -> None:
        """Begin with no tokens, or with those of ``adopted`` (``why_not_adopted`` it is None).

        adopted: a cache of the caller's, which is changed in place.
        """
        self._model = model
        self._adopted = adopted
        self._apart = _APART
        self.copies: list[Copy] = []
        self.states: list[Any] = []
        if adopted is None:
            self.clear()
        else:
            self.cache, self.held, self._plain = adopted, held_tokens(adopted), True

    @property
    def keeps_state(self) -> bool:
        """Whether some layer holds what cannot be cropped."""
        return bool(self.states)

    def computing(self) -> Any:
        """Return the mode of a pass: what goes back to the caller may be used in any other."""
        return torch.inference_mode() if self._adopted is None else torch.no_grad()

    def lengths(self) -> list[int]:
        """Return the tokens that each layer holds; a state that was written holds all."""
        return [
            layer.get_seq_length()
            if _counts(layer)
            else self.held * any(layer.has_previous_state.values())
            for layer in self.cache.layers
            if _counts(layer) or isinstance(layer, LinearAttentionCacheLayerMixin)
        ]

    @property
    def bytes(self) -> int:
        """Memory of all that is held, copies of states among it."""
        return sum(each.untyped_storage().nbytes() for each in _tensors((self.cache, self.copies)))

    def clear(self) -> None:
        """Hold no tokens."""
        self.held = 0
        if self._adopted is not None:
            self.cache.layers[:] = [DynamicLayer() for _ in self.cache.layers]
            return
        layers = cache_layers(self._model)
        self.cache = DynamicCache()
        self.copies.clear()
        self.states = [layer for layer in layers if not crops(layer)]
        # Layers of attention alone are made when they are first used: some models have another
        # number of them than their configuration says.
        self._plain = all(type(layer) is DynamicLayer for layer in layers)
        if not self._plain:
            self.cache.layers, self.cache.layer_class_to_replicate = layers, None

    def save(self) -> None:
        """Copy the states of the tokens held, unless a copy is near."""
        if not self.states or not self.held:
            return
        if self.copies and self.held - self.copies[-1].length < self._apart:
            return
        with torch.inference_mode():
            states = [copy.deepcopy(_state(layer)) for layer in self.states]
        self.copies = [*self.copies[1 - _COPIES :], Copy(self.held, states)]

    def rewind(self, length: int, *, failed: bool = False) -> None:
        """Hold the first ``length`` tokens, or fewer where their states were not kept.

        failed: a pass ended half way; what it has left is gone.
        """
        if not failed and length == self.held:
            return
        if self.states:
            self.copies = [each for each in self.copies if each.length <= length]
            if not self.copies:
                self._apart = min(2 * self._apart, _FARTHEST)
            length = self.copies[-1].length if self.copies else 0
        if not length or (failed and not self.states and not self._plain):
            self.clear()
            return
        if self.states:
            with torch.inference_mode():
                states = copy.deepcopy(self.copies[-1].states)
            for layer, state in zip(self.states, states, strict=True):
                vars(layer).update(state)
        for layer in self.cache.layers:
            excess = layer.get_seq_length() - length if _counts(layer) else 0
            if excess > 0:
                _crop(layer, excess)
        self.held = length


def _counts(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer)


def _state(layer: Any) -> dict[str, Any]:
    """Return what a layer holds beside positions that can be cropped."""
    kept = _POSITIONS if isinstance(layer, LinearAttentionAndFullAttentionLayer) else ()
    return {name: value for name, value in vars(layer).items() if name not in kept}


def _crop(layer: Any, excess: int) -> None:
    if isinstance(layer, LinearAttentionAndFullAttentionLayer):
        DynamicLayer.crop(layer, -excess)  # its states have been put back
    else:
        layer.crop(-excess)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a cache, wherever its classes keep them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value))
    elif hasattr(type(value), "__slots__"):
        yield from _tensors([getattr(value, name) for name in type(value).__slots__])
