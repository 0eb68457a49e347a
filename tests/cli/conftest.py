"""Runs the command line inside the test process and hands back code, stdout and stderr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from draftwire.cli.main import run


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: str) -> Ran:
        code = int(run(list(arguments)))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call
