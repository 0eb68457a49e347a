"""Models as the commands load them."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from draftwire.cli.models import Target
from draftwire.errors import ConfigurationError, ExitCode
from tests.cli.conftest import Cli, Pair


def test_text_becomes_ids_and_back(pair: Pair) -> None:
    target = Target(pair.target, device="cpu", threads=1)
    ids = target.encode("w3 w7 w9")
    assert ids == [3, 7, 9]
    assert target.decode([*ids, 1]) == "w3 w7 w9"
    with pytest.raises(ConfigurationError, match="no tokens"):
        target.encode(" ")


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_an_engine_that_is_not_installed_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, missing: str
) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for command in (("serve",), ("generate", "--prompt", "x")):
        ran = cli(*command)
        assert ran.code == ExitCode.CONFIGURATION
        assert f"{missing} is not installed: pip install 'draftwire[hf]'" in ran.err
