"""Hidden states out of vLLM's runner: its auxiliary states, kept by request and position (P36)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwire.engines.hf.states import KeptStates, StateTap
from draftwire.verifier.states import TargetStates


def target_states(vllm_config: Any) -> TargetStates | None:
    """Return what a target has of states, None where vLLM does not give them out.

    It does for models that serve as the target of its own EAGLE-3 drafters; asked for on one rank,
    since the layers, which the drafter names, have to be known on all. The last layer is left out:
    its state is given out before the final norm, and drafters read it behind that.
    """
    from vllm.model_executor.model_loader.utils import get_model_cls
    from vllm.model_executor.models.interfaces import supports_eagle3

    model = vllm_config.model_config
    if vllm_config.parallel_config.world_size > 1 or not supports_eagle3(get_model_cls(model)):
        return None
    layers = int(model.hf_text_config.num_hidden_layers) - 1
    return TargetStates(layers, int(model.get_hidden_size())) if layers else None


class RunnerStates:
    """The states of every request of a runner, as the layers of one drafter.

    layers: 0 = what the first puts out. width: elements of one layer's state.
    """

    def __init__(self, layers: Sequence[int], width: int) -> None:
        """Keep nothing yet."""
        self.layers = tuple(layers)
        self._tap = StateTap(("",) * len(self.layers), width)
        self._kept: dict[str, KeptStates] = {}

    @property
    def vllm_layers(self) -> tuple[int, ...]:
        """The layers as vLLM counts them: before which layer a state stands."""
        return tuple(layer + 1 for layer in self.layers)

    def take(self, batch: Any, counts: dict[str, int], states: Sequence[Any]) -> None:
        """Keep what a step has computed.

        batch: the runner's. counts: tokens that the step has read, by request. states: (T, d) of
        all of them in the order of the batch, a layer each.
        """
        begin = 0
        for row, name in enumerate(batch.req_ids):
            end = begin + counts[name]
            kept = self._kept.setdefault(name, KeptStates(self._tap, self.layers))
            kept.add(int(batch.num_computed_tokens_cpu[row]), [each[begin:end] for each in states])
            begin = end

    @property
    def requests(self) -> list[str]:
        """Those of which something is kept."""
        return list(self._kept)

    def finish(self, name: str) -> None:
        """A request has ended."""
        self._kept.pop(name, None)

    def source(self, name: str) -> RequestSource:
        """Return where the states of a request come from."""
        kept = self._kept.setdefault(name, KeptStates(self._tap, self.layers))
        return RequestSource(kept)


class RequestSource:
    """Implements :class:`draftwire.verifier.states.StateSource` for one request.

    A rejected draft stands where the next step reads the token that took its place, and so behind
    every position that is asked for.
    """

    def __init__(self, kept: KeptStates) -> None:
        self._kept = kept
        self._reads = True  # whether the drafter reads these layers

    def keep(self, layers: Sequence[int]) -> None:
        """The layers were set when the model was loaded; another drafter's are not to be had."""
        self._reads = tuple(layers) == self._kept.layers

    def rows(self, first: int, most: int) -> tuple[int, NDArray[np.float32]]:
        """Return rows of committed tokens and the position of their first."""
        begin = max(first, self._kept.first)
        end = min(first + most, self._kept.end) if self._reads else begin
        return begin, self._kept.rows(begin, max(begin, end))
