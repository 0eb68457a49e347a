"""What all texts of one drafter have come to: the sum of their reports."""

from __future__ import annotations

import threading
from collections import deque

from draftwire.verifier.report import Report


class Totals:
    """Sums up the reports of texts while they are made; any thread may ask.

    The thread that makes a text hands a copy of its report in between rounds, so no sum holds half
    a round. A report that is finished is added up and let go, so this does not grow with the texts.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._ended = Report()
        self._copies: dict[int, Report] = {}  # of the texts that are followed, by their number
        self._ends: deque[tuple[int, Report]] = deque()  # that are not added up yet
        self._texts = 0

    def follow(self) -> int:
        """Count a text that begins; returns its number, for ``update`` and ``end``."""
        with self._lock:
            self._settle()
            self._texts += 1
            self._copies[self._texts] = Report()
            return self._texts

    def update(self, text: int, report: Report) -> None:
        """Take what a text has come to; called between its rounds by what makes it."""
        copy = report.copy()
        with self._lock:
            if text in self._copies:
                self._copies[text] = copy

    def end(self, text: int, report: Report) -> None:
        """Take what a text has come to in the end; a second call does nothing.

        It may be called anywhere, by a destructor in the middle of another call of this very
        thread; so it takes no lock.
        """
        self._ends.append((text, report))

    @property
    def texts(self) -> int:
        """Texts that were begun."""
        return self._texts

    @property
    def running(self) -> int:
        """Texts that are being made."""
        with self._lock:
            self._settle()
            return sum(copy.finish is None for copy in self._copies.values())

    def sum(self) -> Report:
        """Return the sum so far; a copy, which does not change any more."""
        total = Report()
        with self._lock:
            self._settle()
            for report in (self._ended, *self._copies.values()):
                total.add(report)
        return total

    def _settle(self) -> None:
        """Add up what has ended."""
        while self._ends:
            text, report = self._ends.popleft()
            if self._copies.pop(text, None) is not None:
                self._ended.add(report)
