"""Notes of a run, said once each on standard error."""

from __future__ import annotations

from collections.abc import Sequence

import click


class Notes:
    """Says what a run wants the user to know, and nothing twice."""

    def __init__(self) -> None:
        self._told = 0
        self._away: str | None = None

    def away(self, error: Exception) -> None:
        """Say at once that no drafter is there; the run's own note of it is then left out."""
        self._away = str(error)
        click.echo(f"draftwire: {error}; going on with the target alone", err=True)

    def tell(self, notes: Sequence[str]) -> None:
        """Say those that are new."""
        for note in notes[self._told :]:
            if self._away is None or self._away not in note:
                click.echo(f"draftwire: {note}", err=True)
        self._told = len(notes)
