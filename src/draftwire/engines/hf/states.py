"""Hidden states of a transformers model's layers, taken out of passes that compute them anyway.

A layer's state is what transformers itself calls ``hidden_states[layer + 1]``. Hooks take it, so
that a pass holds no more than the layers that are asked for; whether they see the same is tried.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

_LOG: Final = logging.getLogger("draftwire.verifier")
_TRIED: Final = (3, 5, 2)


@dataclass(slots=True)
class _Taken:
    """What the hooks of one pass have taken: (T, d) by layer. wanted: the layers."""

    wanted: frozenset[int]
    rows: dict[int, torch.Tensor] = field(default_factory=dict)


_TAKING: ContextVar[_Taken | None] = ContextVar("draftwire_states", default=None)


@dataclass(frozen=True, slots=True)
class StateTap:
    """Where the states of a model's layers are had.

    modules: the names of those that put them out, a layer each. width: elements of one.
    """

    modules: tuple[str, ...]
    width: int

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.modules)

    def hook(self, model: Any) -> list[Any]:
        """Let the modules of a model of this structure give their states to ``taking``."""
        return [
            model.get_submodule(name).register_forward_hook(_hook(layer))
            for layer, name in enumerate(self.modules)
        ]


_HOOKED: Final[WeakSet[Any]] = WeakSet()
_NO_TAP: Final = StateTap((), 0)
_TAPS: WeakKeyDictionary[Any, StateTap] = WeakKeyDictionary()


def state_tap(model: Any) -> StateTap:
    """Return where a model's states are had, tried out once; one of no layers where nowhere."""
    tap = _TAPS.get(model)
    if tap is None:
        try:
            tap = _tapped(model)
        except Exception as error:  # whatever a model that is not ours does
            _LOG.info("no states of %s can be had: %s", type(model).__name__, error)
            tap = _NO_TAP
        _TAPS[model] = tap
    return tap


def _tapped(model: Any) -> StateTap:
    """Hook a model's layers, and its last norm in the place of its last layer where that is due."""
    decoder = model.get_decoder()
    count = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    names = {id(module): name for name, module in model.named_modules()}
    stacks = [each for each in decoder.children() if isinstance(each, torch.nn.ModuleList)]
    layers = next((list(each) for each in stacks if len(each) == count), None)
    if layers is None:
        raise ValueError(f"it has no list of its {count} layers")
    lasts = [layers[-1], *([decoder.norm] if hasattr(decoder, "norm") else [])]
    for last in lasts:
        modules = tuple(names[id(each)] for each in (*layers[:-1], last))
        tap = StateTap(modules, int(model.get_input_embeddings().weight.shape[1]))
        handles = tap.hook(model)
        try:
            same = _same(model, tap)
        finally:  # a model whose states nobody reads runs without hooks
            for handle in handles:
                handle.remove()
        if same:
            return tap
    raise ValueError("what its layers put out is not what it calls their states")


@contextmanager
def taking(model: Any, *kept: KeptStates | None) -> Iterator[_Taken]:
    """Take the states that these keep out of the pass of a model inside; it is hooked once."""
    for each in kept:
        if each is not None and model not in _HOOKED:
            each.tap.hook(model)
            _HOOKED.add(model)
    layers = frozenset(layer for each in kept if each is not None for layer in each.layers)
    taken = _Taken(layers)
    reset = _TAKING.set(taken if layers else None)
    try:
        yield taken
    finally:
        _TAKING.reset(reset)


def _hook(layer: int) -> Any:
    def take(module: Any, arguments: Any, output: Any) -> None:
        taken = _TAKING.get()
        if taken is not None and layer in taken.wanted:
            state = output[0] if isinstance(output, tuple) else output
            taken.rows[layer] = state[0].detach()

    return take


def _same(model: Any, tap: StateTap) -> bool:
    """Whether the hooks see what transformers calls the hidden states, bit for bit."""
    size = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.tensor([[each % size for each in _TRIED]], device=model.device)
    reset = _TAKING.set(taken := _Taken(frozenset(range(tap.layers))))
    try:
        with torch.inference_mode():
            given = model(
                input_ids=ids, output_hidden_states=True, return_dict=True, use_cache=False
            )
    finally:
        _TAKING.reset(reset)
    states = given.hidden_states
    return len(states) == tap.layers + 1 and all(
        taken.rows[at].shape == (len(_TRIED), tap.width)
        and torch.equal(taken.rows[at], states[at + 1][0])
        for at in range(tap.layers)
    )


class KeptStates:
    """The rows of one sequence that were computed since it was asked for: n states a position.

    layers: rising. first: the position of the first row; there is no gap behind it. Rows lie on the
    CPU, in the model's own type, for as long as the sequence does.
    """

    def __init__(self, tap: StateTap, layers: Sequence[int]) -> None:
        """Keep nothing yet."""
        self.tap = tap
        self.layers = tuple(layers)
        self.first = 0
        self._rows: list[torch.Tensor] = []

    @property
    def end(self) -> int:
        """One past the position of the last row."""
        return self.first + len(self._rows)

    def add(self, position: int, states: Sequence[torch.Tensor]) -> None:
        """Keep what was computed for the tokens from ``position`` on: (T, d) a layer.

        Rows from there on are replaced; where those before it were not kept, so are all others.
        """
        if not self.first <= position <= self.end:
            self._rows.clear()
        if not self._rows:
            self.first = position
        del self._rows[position - self.first :]
        self._rows += torch.cat(list(states), dim=-1).cpu().unbind(0)

    def rows(self, first: int, last: int) -> NDArray[np.float32]:
        """Return those of positions first to last - 1, which are kept, as binary32."""
        kept = self._rows[first - self.first : last - self.first]
        if not kept:
            return np.zeros((0, len(self.layers) * self.tap.width), np.float32)
        stacked: NDArray[np.float32] = torch.stack(kept).float().numpy()
        return stacked
