"""Something to see whenever work takes longer than two seconds; all of it on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 2.0


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say ``what`` is going on: a spinner on a terminal, else one line when it takes long."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(f"{what} ..."):
            yield
        return
    timer = threading.Timer(PATIENCE_SECONDS, lambda: click.echo(f"{what} ...", err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Counting:
    """A count towards a total, drawn as a bar on a terminal, else a line every two seconds."""

    def __init__(self, what: str, total: int, unit: str = "") -> None:
        self._what, self._total, self._done = what, total, 0
        self._unit = unit and f" {unit}"
        self._said = time.monotonic()
        self._bar = _bar(what, total) if sys.stderr.isatty() else None

    def __enter__(self) -> Counting:
        """Begin."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count one more."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
        elif time.monotonic() - self._said >= PATIENCE_SECONDS:
            self._said = time.monotonic()
            click.echo(f"{self._what}: {self._done} of {self._total}{self._unit}", err=True)


def _bar(what: str, total: int) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    return bar
