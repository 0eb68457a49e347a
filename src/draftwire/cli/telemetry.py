"""Options that say how a run is observed, the same for both commands, and what they do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from draftwire.cli.options import HostType
from draftwire.telemetry.events import log_event
from draftwire.telemetry.log_handler import FORMATS, LEVELS
from draftwire.transport.tcp import Address, is_loopback

if TYPE_CHECKING:
    from draftwire.drafter.program import DrafterProgram
    from draftwire.verifier.client import DraftClient

_LOG: Final = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """How a run is observed. metrics: where to serve them; None = nowhere."""

    metrics: Address | None
    log_level: str
    log_format: str


def telemetry_options(level: str) -> Callable[[Command], Command]:
    """Return the decorator that adds the options; level: of the logs, where none is named."""
    options = (
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65535),
            help="Serve /metrics (Prometheus) and /healthz there; 0 takes any free port.",
        ),
        click.option(
            "--metrics-host",
            type=HostType(),
            metavar="HOST",
            default="127.0.0.1",
            show_default=True,
            help="Address of the metrics; they authenticate no reader.",
        ),
        click.option(
            "--metrics-open",
            is_flag=True,
            help="Let other machines read the metrics: --metrics-host need not be loopback.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(LEVELS),
            default=level,
            show_default=True,
            help="What is logged to standard error; never text or tokens.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            help="One line an event, or one JSON object a line.",
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def take_telemetry(values: dict[str, Any]) -> TelemetryOptions:
    """Take the options out of ``values`` and return what they say.

    Raises click.UsageError for an address that others can reach, unless that was asked for.
    """
    port, host = values.pop("metrics_port"), values.pop("metrics_host")
    if not values.pop("metrics_open") and not is_loopback(host):
        raise click.UsageError(
            f"--metrics-host {host} can be reached from other machines, without a key and without"
            " TLS: add --metrics-open if they may read the metrics, or keep 127.0.0.1"
        )
    return TelemetryOptions(
        None if port is None else Address(host, port),
        values.pop("log_level"),
        values.pop("log_format"),
    )


@contextmanager
def serving_metrics(
    telemetry: TelemetryOptions,
    source: DraftClient | DrafterProgram[Any],
    draining: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Serve the metrics of a program while the block runs, if that was asked for."""
    if telemetry.metrics is None:
        yield
        return
    from prometheus_client import CollectorRegistry

    from draftwire.telemetry.collector import register_metrics
    from draftwire.telemetry.http_server import metrics_server

    registry = CollectorRegistry()
    register_metrics(source, registry)
    with metrics_server(*telemetry.metrics, registry, draining) as address:
        text = f"metrics on http://{address}/metrics"
        if telemetry.log_format == "json":  # every line is one event then
            log_event(_LOG, logging.INFO, "metrics", text, address=str(address))
        else:
            click.echo(f"draftwire: {text}", err=True)
        yield
