"""Our numbers in a Prometheus registry: read when it is scraped, never written on the way.

``prometheus_client`` is imported when a collector is made, so no other program waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic

from draftwire.drafter.program import DrafterProgram
from draftwire.telemetry.drafter_metrics import DRAFTER_METRICS, DrafterView
from draftwire.telemetry.histogram import Histogram
from draftwire.telemetry.metric_spec import Kind, MetricSpec, Source
from draftwire.telemetry.verifier_metrics import VERIFIER_METRICS, VerifierView
from draftwire.verifier.client import DraftClient

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class Collector(Generic[Source]):
    """What a registry asks: looks once at the source, and yields all its metrics."""

    def __init__(self, specs: Sequence[MetricSpec[Source]], look: Callable[[], Source]) -> None:
        """Remember where to look."""
        self._specs = specs
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with the numbers of this moment."""
        view = self._look()
        for spec in self._specs:
            yield _metric(spec, spec.read(view))

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without numbers, so that registering reads nothing."""
        for spec in self._specs:
            yield _metric(spec, {})


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
        Collector(VERIFIER_METRICS, lambda: VerifierView.of(source))
        if isinstance(source, DraftClient)
        else Collector(DRAFTER_METRICS, lambda: DrafterView.of(source))
    )
    (REGISTRY if registry is None else registry).register(collector)
    return collector


def _metric(spec: MetricSpec[Source], value: object) -> Metric:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if isinstance(value, Histogram):
        buckets = [(_edge(edge), float(count)) for edge, count in value.cumulative()]
        return HistogramMetricFamily(spec.name, spec.help, buckets=buckets, sum_value=value.sum)
    if spec.kind is Kind.HISTOGRAM:
        return HistogramMetricFamily(spec.name, spec.help)
    of = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
    if not isinstance(value, dict):
        return of(spec.name, spec.help, value=value)
    metric = of(spec.name, spec.help, labels=[spec.label] if spec.label else [])
    for label, number in value.items():
        metric.add_metric([label], number)
    return metric


def _edge(edge: float) -> str:
    return "+Inf" if edge == float("inf") else str(float(edge))
