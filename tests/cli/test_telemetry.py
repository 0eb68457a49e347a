"""Metrics have neither key nor TLS: other machines reach them only where that was asked for."""

from __future__ import annotations

import click
import pytest

from draftwire.cli.telemetry import take_telemetry
from draftwire.transport.tcp import Address


def values(host: str, *, metrics_open: bool) -> dict[str, object]:
    return {
        "metrics_port": 9711,
        "metrics_host": host,
        "metrics_open": metrics_open,
        "log_level": "info",
        "log_format": "text",
    }


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "metrics.example"])
def test_an_address_that_others_reach_is_refused_unless_it_was_opened(host: str) -> None:
    with pytest.raises(click.UsageError, match="--metrics-open"):
        take_telemetry(values(host, metrics_open=False))
    assert take_telemetry(values(host, metrics_open=True)).metrics == Address(host, 9711)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_leave(host: str) -> None:
    assert take_telemetry(values(host, metrics_open=False)).metrics == Address(host, 9711)
