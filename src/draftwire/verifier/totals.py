"""What all texts of one drafter have come to: the sum of their reports."""

from __future__ import annotations

import threading

from draftwire.verifier.report import Report


class Totals:
    """Follows reports while their texts are made and sums them up; any thread may ask.

    A report that is finished is added up and let go, so this does not grow with the texts.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._ended = Report()
        self._running: list[Report] = []
        self._texts = 0

    def follow(self, report: Report) -> None:
        """Count a text that begins; its report must be finished at some time."""
        with self._lock:
            self._settle()
            self._running.append(report)
            self._texts += 1

    @property
    def texts(self) -> int:
        """Texts that were begun."""
        return self._texts

    @property
    def running(self) -> int:
        """Texts that are being made."""
        with self._lock:
            self._settle()
            return len(self._running)

    def sum(self) -> Report:
        """Return the sum so far; a copy, which does not change any more."""
        with self._lock:
            self._settle()
            total = Report()
            for report in (self._ended, *self._running):
                total.add(report)
            return total

    def _settle(self) -> None:
        for report in self._running:
            if report.finish is not None:
                self._ended.add(report)
        self._running = [report for report in self._running if report.finish is None]
