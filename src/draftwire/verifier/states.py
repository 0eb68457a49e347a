"""Hidden states on their way to the drafter: what is offered, agreed and sent (P36, P37)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftwire.errors import PairMismatchError
from draftwire.rows.states import encode_states
from draftwire.session.sent_states import NO_STATES, StateRows
from draftwire.verifier.engine import YieldsStates
from draftwire.wire.agreement import Agreed
from draftwire.wire.hello import StateOffer
from draftwire.wire.registry import MAX_STATE_LAYERS, HiddenDtype


class Projection(Protocol):
    """The drafter's own projection of a row, applied beside the target."""

    @property
    def digest(self) -> bytes:
        """SHA-256 of its weights (P36)."""

    def fuse(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (R, d) of (R, n x d)."""


@dataclass(frozen=True, slots=True)
class TargetStates:
    """What a target has of states. layers: how many. width: elements of one layer's state."""

    layers: int
    width: int

    @classmethod
    def of(cls, target: Any) -> TargetStates | None:
        """Return those of a target, None where it has none."""
        if not isinstance(target, YieldsStates) or not target.state_layers:
            return None
        return cls(target.state_layers, target.state_width)

    def offer(self, rows: int, dtype: HiddenDtype, projection: Projection | None) -> StateOffer:
        """Return what a verifier says of them in HELLO. rows: most of a STEP."""
        most = min(self.layers, MAX_STATE_LAYERS)
        return StateOffer(rows, dtype, self.width, most, fuses=projection is not None)


def require_states(has: TargetStates | None, projection: Projection | None, agreed: Agreed) -> None:
    """Refuse a drafter that reads other states than the target has, or projects them otherwise.

    Raises PairMismatchError.
    """
    form = agreed.states
    if form is None or has is None:
        return
    if form.width != has.width or form.layers[-1] >= has.layers:
        layers = ", ".join(map(str, form.layers))
        field = "hidden_width" if form.width != has.width else "hidden_layers"
        raise PairMismatchError(
            field,
            f"the drafter reads layers {layers} of {form.width} elements; this target has layers 0"
            f" to {has.layers - 1} of {has.width}: it was made for another target",
        )
    if form.fused and (projection is None or projection.digest != agreed.projection):
        raise PairMismatchError(
            "projection",
            "the projection of states that was given is not the drafter's: give the folder that the"
            " drafter serves, or none",
        )


class StateSource(Protocol):
    """Where one request's states come from."""

    def keep(self, layers: Sequence[int]) -> None:
        """Keep the states of these layers from now on."""

    def rows(self, first: int, most: int) -> tuple[int, NDArray[np.float32]]:
        """Return rows of committed tokens and the position of their first; see YieldsStates."""


class RequestStates:
    """The states of one request's target context. committed: the text, which grows in place."""

    def __init__(self, target: YieldsStates[Any], context: Any, committed: Sequence[int]) -> None:
        self._target, self._context, self._committed = target, context, committed

    def keep(self, layers: Sequence[int]) -> None:
        """Keep the states of these layers from now on."""
        self._target.keep_states(self._context, layers)

    def rows(self, first: int, most: int) -> tuple[int, NDArray[np.float32]]:
        """Return rows of committed tokens and the position of their first."""
        return self._target.states(self._context, self._committed, first, most)


def rows_for(
    wanted: tuple[int, int],
    source: StateSource | None,
    projection: Projection | None,
    agreed: Agreed,
) -> StateRows:
    """Return the rows of the next STEP as they travel. wanted: where they begin and most of them.

    A row that is not finite is not sent, nor what is behind it.
    """
    form, (first, most) = agreed.states, wanted
    if form is None or source is None or most < 1:
        return NO_STATES
    first, rows = source.rows(first, most)
    if form.fused and projection is not None and len(rows):
        rows = projection.fuse(rows)
    data = encode_states(rows, form.dtype) if len(rows) else b""
    return StateRows(first, len(data) // form.row_bytes, data) if data else NO_STATES
