"""``draftwire serve``: what is refused before a model is read."""

from __future__ import annotations

import click
import pytest

from draftwire.cli.limits import LIMITS, limit_options, take_limits
from draftwire.cli.options import flag
from draftwire.drafter.limits import PeerLimits
from draftwire.errors import ExitCode
from tests.cli.conftest import Cli

REFUSED = [
    (("--host", "0.0.0.0"), "ssh -N -L"),
    (("--host", "192.168.1.7"), "not loopback"),
    (("--host", "::"), "not loopback"),
    (("--host", "drafter-box"), "not loopback"),
    (("--port", "65536"), "--port"),
    (("--port", "-1"), "--port"),
    (("--max-sessions", "0"), "--max-sessions"),
    (("--max-batch", "0"), "--max-batch"),
    (("--max-batch", "5000"), "--max-batch"),
    (("--max-context", "1"), "--max-context"),
    (("--max-context", "9999999999"), "--max-context"),
    (("--max-depth", "65"), "--max-depth"),
    (("--max-depth", "0"), "--max-depth"),
    (("--max-support", "0"), "--max-support"),
    (("--layouts", "packed"), "dense,sparse"),
    (("--layouts", ""), "dense,sparse"),
    (("--wire", "v3"), "v2"),
    (("--wire", "v1", "--layouts", "dense"), "drop it"),
    (("--wire", "v1", "--max-support", "8"), "drop it"),
    (("--lease-seconds", "0"), "--lease-seconds"),
    (("--lease-seconds", "nan"), "--lease-seconds"),
    (("--lease-seconds", "5", "--yield-seconds", "6"), "6 must not exceed --lease-seconds 5"),
    (("--lease-seconds", "5", "--host", ""), "--host"),
    (("--host", " ", "--psk-file", "none"), "--host"),
    (("--metrics-port", "0", "--metrics-host", ""), "--metrics-host"),
    (("--max-connections", "0"), "--max-connections"),
    (("--frames-per-second", "0"), "--frames-per-second"),
    (("--mib-per-second", "-1"), "--mib-per-second"),
    (("--refusals-at-once", "0"), "--refusals-at-once"),
    (("--refusals-per-second", "inf"), "--refusals-per-second"),
    (("--handshake-seconds", "0"), "--handshake-seconds"),
    (("--max-half-open", "0"), "--max-half-open"),
    (("--max-positions", "-1"), "--max-positions"),
    (("--max-positions", "7"), "never lets a proposal"),
    (("--temperature", "1"), "--temperature"),
    (("--target-identity", "ab"), "64 hexadecimal digits"),
    (("--vocabulary", "any"), "'exact', 'shared'"),
    (("--vocabulary", "shared"), "add --target-tokenizer FOLDER"),
    (("--target-tokenizer", "."), "is of --vocabulary shared"),
    (("--vocab-size", "0"), "--vocab-size"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=lambda value: " ".join(value))
def test_refused_with_what_to_do(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    ran = cli("serve", *arguments)
    assert ran.code == ExitCode.USAGE
    assert says in ran.err and ran.err.count("\n") == 1 and ran.out == ""


def test_the_limits_that_were_named_are_those_that_hold() -> None:
    """Each flag lands in its own limit, in its unit; without flags they are PeerLimits' own."""
    command = click.Command("limits", params=[click.Option(["--max-depth"], type=int, default=8)])
    limit_options(command)
    assert take_limits(command.make_context("limits", []).params) == PeerLimits()
    given = {name: str(index + 40) for index, name in enumerate(LIMITS)}
    given["yield_seconds"] = "2"
    arguments = [each for name, value in given.items() for each in (flag(name), value)]
    limits = take_limits(command.make_context("limits", arguments).params)
    for name, value in given.items():
        if name == "mib_per_second":
            assert limits.bytes_per_second == float(value) * 2**20
        else:
            assert getattr(limits, name) == float(value)


def test_a_short_lease_alone_is_enough() -> None:
    """The eviction time follows it, unless it is given."""
    command = click.Command("limits", params=[click.Option(["--max-depth"], type=int, default=8)])
    limit_options(command)
    limits = take_limits(command.make_context("limits", ["--lease-seconds", "5"]).params)
    assert limits.evict_idle_after == 5.0
    assert PeerLimits().evict_idle_after == 10.0
