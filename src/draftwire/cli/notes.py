"""Notes of a run, said once each on standard error."""

from __future__ import annotations

from collections.abc import Sequence

import click


class Notes:
    """Says what a run wants the user to know."""

    def __init__(self) -> None:
        self._said = 0

    def tell(self, notes: Sequence[str]) -> None:
        """Say those that are new."""
        for note in notes[self._said :]:
            click.echo(f"draftwire: {note}", err=True)
        self._said = len(notes)
