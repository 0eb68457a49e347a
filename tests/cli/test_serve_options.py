"""``draftwire serve``: what is refused before a model is read."""

from __future__ import annotations

import pytest

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
    (("--max-depth", "65"), "--max-depth"),
    (("--max-depth", "0"), "--max-depth"),
    (("--max-support", "0"), "--max-support"),
    (("--layouts", "packed"), "dense,sparse"),
    (("--layouts", ""), "dense,sparse"),
    (("--wire", "v3"), "v2"),
    (("--wire", "v1", "--layouts", "dense"), "drop it"),
    (("--wire", "v1", "--max-support", "8"), "drop it"),
    (("--temperature", "1"), "--temperature"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=lambda value: " ".join(value))
def test_refused_with_what_to_do(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    ran = cli("serve", *arguments)
    assert ran.code == ExitCode.USAGE
    assert says in ran.err and ran.err.count("\n") == 1 and ran.out == ""
