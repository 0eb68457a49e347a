"""Options of hidden states that a verifier sends to a drafter that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from draftwire.cli.options import model_folder
from draftwire.wire.hello import DEFAULT_STATE_ROWS
from draftwire.wire.registry import HiddenDtype

STATES: Final = ("state_rows", "state_dtype", "state_projection")
_DTYPES: Final = {"bf16": HiddenDtype.BFLOAT16, "fp32": HiddenDtype.FLOAT32}


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How states travel. projection: the folder of the drafter whose own is applied here."""

    rows: int = DEFAULT_STATE_ROWS
    dtype: HiddenDtype = HiddenDtype.BFLOAT16
    projection: Path | None = None

    def config(self, device: str) -> dict[str, Any]:
        """Return the fields of a ``VerifierConfig``; reads the projection. Raises ModelError."""
        fields: dict[str, Any] = {"state_rows": self.rows, "state_dtype": self.dtype}
        if self.projection is not None:
            from draftwire.engines.dspark.projection import StateProjection

            fields["state_projection"] = StateProjection.from_folder(self.projection, device=device)
        return fields


def state_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in (
        model_folder(
            "--state-projection",
            help="The drafter's folder: its projection is applied here, and fewer bytes travel.",
        ),
        click.option(
            "--state-dtype",
            type=click.Choice(list(_DTYPES)),
            default="bf16",
            show_default=True,
            help="An element of the target's hidden states, for a drafter that reads them.",
        ),
        click.option(
            "--state-rows",
            type=click.IntRange(0, (1 << 16) - 1),
            default=DEFAULT_STATE_ROWS,
            show_default=True,
            help="Most tokens whose hidden states go with one question; 0: none are sent.",
        ),
    ):
        command = option(command)
    return command


def take_states(values: dict[str, Any]) -> StateOptions:
    """Take the options out of ``values``."""
    rows, dtype, projection = (values.pop(name) for name in STATES)
    if projection is not None and not rows:
        raise click.UsageError("--state-projection is of no use with --state-rows 0")
    return StateOptions(rows, _DTYPES[dtype], projection)
