"""Our counters on vLLM's /metrics: the worker counts in a small shared file, the server reads it.

The worker that drafts and the server that answers /metrics are different processes of one vLLM. The
file holds nothing but numbers, in the order of ``SERIES``; it is named after the engine's instance.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from draftwire.session.reasons import DropReason
from draftwire.verifier.miss import MissReason
from draftwire.wire.registry import MAX_DEPTH

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "draftwire"


@dataclass(frozen=True, slots=True)
class Series:
    """One number: a counter (of what it counts) or a gauge, with at most one label."""

    name: str
    help: str
    label: str = ""
    value: str = ""
    gauge: bool = False


def _series() -> Iterator[Series]:
    yield Series("rounds", "Rounds of all requests: each ends with one token of the target's")
    yield Series("drafting_steps", "Steps of the engine that asked for drafts, of all rows at once")
    yield Series("drafts", "Rounds with a proposal")
    yield Series("proposed_tokens", "Drafts that arrived whole, validated and audited")
    yield Series("draft_tokens", "Drafts that were held against the target's p")
    yield Series("truncated_tokens", "Drafts that the scheduler or a grammar cut off, not verified")
    yield Series("accepted_tokens", "Drafts that were accepted")
    yield Series("refused_rows", "Rows of p that are no distribution; vLLM's own choice stands")
    yield Series("sent_bytes", "Bytes sent to the drafter")
    yield Series("received_bytes", "Bytes received from the drafter")
    yield Series("propose_seconds", "Time in which the engine waited for proposals, audit included")
    yield Series("audit_seconds", "Time spent on recomputing draws")
    yield Series("verify_seconds", "Time spent on verification, the target's pass not included")
    yield Series("sessions", "Sessions open now", gauge=True)
    yield Series(
        "paused_requests", "Requests that drafting does not pay for and that pause", gauge=True
    )
    for position in range(MAX_DEPTH):
        yield Series("accepted_tokens_per_pos", "Accepted drafts", "position", str(position))
    for reason in (*MissReason, *DropReason):
        yield Series("misses", "Rounds without a proposal", "reason", reason.value)


SERIES: Final = tuple(_series())
_PLACES: Final = {(each.name, each.value): place for place, each in enumerate(SERIES)}


class WorkerMetrics:
    """The numbers of one worker; shared with the server once :meth:`share` has been called."""

    def __init__(self) -> None:
        """Begin at zero, in this process alone."""
        self._numbers: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(len(SERIES))
        self._file: Path | None = None

    def share(self, instance: str, rank: int) -> None:
        """Go on counting in the file that the server of this instance reads."""
        path = _folder(create=True) / f"{instance}.{rank}"
        shared = np.memmap(path, np.float64, "w+", shape=(len(SERIES),))
        shared[:] = self._numbers
        self._numbers, self._file = shared, path

    def add(self, name: str, amount: float = 1, value: str = "") -> None:
        """Count; ``value`` is the label's."""
        self._numbers[_PLACES[name, value]] += amount

    def set(self, name: str, amount: float) -> None:
        """Set a gauge, or a counter that is counted elsewhere."""
        self._numbers[_PLACES[name, ""]] = amount

    def __getitem__(self, name: str) -> float:
        """Return a number without a label."""
        return float(self._numbers[_PLACES[name, ""]])

    def labelled(self, name: str) -> dict[str, float]:
        """Return the numbers of a name that are not zero, by the value of their label."""
        return {
            each.value: float(self._numbers[place])
            for place, each in enumerate(SERIES)
            if each.name == name and self._numbers[place]
        }

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None


class Collector:
    """What the server's registry asks: the sum over the workers of one vLLM instance."""

    def __init__(self, instance: str) -> None:
        """Remember whose files to read; they need not exist yet."""
        self.instance = instance

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family a name, or nothing before a worker counts."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        numbers = self._read()
        if numbers is None:
            return
        families: dict[str, Any] = {}
        for place, each in enumerate(SERIES):
            labels = [each.label] if each.label else []
            kind = GaugeMetricFamily if each.gauge else CounterMetricFamily
            family = families.setdefault(
                each.name, kind(f"{PREFIX}:{each.name}", each.help, labels=labels)
            )
            if not labels or numbers[place]:
                family.add_metric([each.value] if labels else [], numbers[place])
        yield from families.values()

    def _read(self) -> list[float] | None:
        try:
            folder = _folder(create=False)
            files = sorted(folder.glob(f"{self.instance}*"))
        except OSError:
            return None
        rows = [np.fromfile(path, np.float64) for path in files]
        rows = [row for row in rows if len(row) == len(SERIES)]
        return list(map(float, np.sum(rows, axis=0))) if rows else None


def register(instance: str) -> None:
    """Add a collector for the instance to the registry of /metrics, once."""
    from prometheus_client import REGISTRY

    known = getattr(REGISTRY, "_collector_to_names", {})
    if not any(isinstance(each, Collector) and each.instance == instance for each in known):
        REGISTRY.register(Collector(instance))


def _folder(*, create: bool) -> Path:
    """The folder of this user's files; OSError where it is not this user's alone."""
    folder = Path(tempfile.gettempdir()) / f"draftwire-metrics-{os.getuid()}"
    if create:
        folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user alone: remove it")
    return folder
