"""The target's hidden states at the drafter: what a model reads, and how it gets it (P36, P37)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.contexts import HeldContext
from draftwire.drafter.engine import Context, FusesStates, ReadsStates
from draftwire.rows.states import decode_states
from draftwire.session.proposal import DraftTask
from draftwire.wire.hello import StateOffer
from draftwire.wire.registry import HiddenDtype
from draftwire.wire.states import StateFormat


def states_read(engine: Any, rows: int) -> StateOffer | None:
    """Return what a drafter says of the states that its model reads, None where it reads none.

    rows: most of a STEP. A row of one layer is as large as a fused one, so it is never fused.
    """
    if not isinstance(engine, ReadsStates):
        return None
    layers, width = engine.state_format.layers, engine.state_format.width
    offer = StateOffer(rows, HiddenDtype.FLOAT32, width, len(layers), layers)
    digest = engine.projection_digest if isinstance(engine, FusesStates) else b""
    if digest and len(layers) > 1:
        return replace(offer, projection=digest, fuses=True)
    return offer


def unwindowed(engine: object, most: int, config: DrafterConfig) -> DrafterConfig:
    """Return the configuration for a model; one that reads states drafts for no longer texts.

    most: tokens that it reads. A window that moves on would lose the states, unless longer texts
    are asked for by name.
    """
    if isinstance(engine, ReadsStates) and not config.max_context:
        return replace(config, max_context=most)
    return config


def give_states(
    engine: Any, held: HeldContext[Context], task: DraftTask, form: StateFormat | None
) -> int:
    """Let a model take the rows of a task that it does not hold yet; returns how many.

    held: truncated to what serves the task. form: as HELLO agreed; None = no states.
    """
    if form is None or not task.hidden or not isinstance(engine, ReadsStates):
        return 0
    rows = decode_states(task.hidden, form)
    first = task.states_from - held.start
    known = max(engine.states_held(held.context) - first, -min(first, 0), 0)
    if known >= len(rows):
        return 0
    engine.take_states(held.context, first + known, rows[known:])
    return len(rows) - known
