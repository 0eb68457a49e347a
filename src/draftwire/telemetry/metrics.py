"""Our numbers in a Prometheus registry: read when it is scraped, never written on the way.

``prometheus_client`` is imported when a collector is made, so nobody else waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic

from draftwire.drafter.program import DrafterProgram
from draftwire.telemetry.histogram import Histogram
from draftwire.telemetry.metric_spec import DrafterView, Family, Kind, Source, VerifierView
from draftwire.telemetry.metric_specs import DRAFTER, VERIFIER
from draftwire.verifier.client import DraftClient

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class Collector(Generic[Source]):
    """What a registry asks: looks once at the source, and yields every family of it."""

    def __init__(self, families: Sequence[Family[Source]], look: Callable[[], Source]) -> None:
        """Remember where to look."""
        self._families = families
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Yield the families with the numbers of this moment."""
        view = self._look()
        for family in self._families:
            yield _metric(family, family.read(view))

    def describe(self) -> Iterator[Metric]:
        """Yield the families without numbers, so that registering reads nothing."""
        for family in self._families:
            yield _metric(family, {})


def register_metrics(
    source: DraftClient | DrafterProgram[Any], registry: CollectorRegistry | None = None
) -> Collector[Any]:
    """Add the metrics of a drafter's client, or of a drafter program, to a registry.

    source: what ``RemoteDrafter(...)`` returns, or the program that a server runs; one of each kind
    a registry. registry: Prometheus's own default where none is given. Returns the collector, which
    ``registry.unregister`` takes out again.
    """
    from prometheus_client import REGISTRY

    collector: Collector[Any] = (
        Collector(VERIFIER, lambda: VerifierView.of(source))
        if isinstance(source, DraftClient)
        else Collector(DRAFTER, lambda: DrafterView.of(source))
    )
    (REGISTRY if registry is None else registry).register(collector)
    return collector


def _metric(family: Family[Source], value: object) -> Metric:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if isinstance(value, Histogram):
        buckets = [(_edge(edge), float(count)) for edge, count in value.cumulative()]
        return HistogramMetricFamily(family.name, family.help, buckets=buckets, sum_value=value.sum)
    if family.kind is Kind.HISTOGRAM:
        return HistogramMetricFamily(family.name, family.help)
    of = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    if not isinstance(value, dict):
        return of(family.name, family.help, value=value)
    metric = of(family.name, family.help, labels=[family.label] if family.label else [])
    for label, number in value.items():
        metric.add_metric([label], number)
    return metric


def _edge(edge: float) -> str:
    return "+Inf" if edge == float("inf") else str(float(edge))
