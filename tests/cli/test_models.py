"""Models as the commands load them."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from draftwire.cli.models import CHARACTERS_A_TOKEN, LEAST_CHARACTERS, Target
from draftwire.errors import ConfigurationError, ExitCode
from tests.cli.conftest import Cli, Pair


def test_text_becomes_ids_and_back(pair: Pair) -> None:
    target = Target(pair.target, device="cpu", threads=1)
    ids = target.encode("w3 w7 w9")
    assert ids == [3, 7, 9]
    assert target.decode([*ids, 1]) == "w3 w7 w9"
    with pytest.raises(ConfigurationError, match="no tokens"):
        target.encode(" ")


def test_a_prompt_far_beyond_the_context_is_not_tokenised(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(pair.target, device="cpu", threads=1)
    most = max(LEAST_CHARACTERS, CHARACTERS_A_TOKEN * target.engine.max_context)
    assert len(target.encode("w3 " * (most // 3))) == most // 3
    monkeypatch.setattr(target, "tokenizer", None)
    with pytest.raises(ConfigurationError, match="shorten it"):
        target.encode("w" * (most + 1))


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
    for command in (("serve", "--port", "0"), ("generate", "--prompt", "x")):
        ran = cli(*command)
        assert ran.code == ExitCode.CONFIGURATION
        assert f"{missing} is not installed: pip install 'draftwire[hf]'" in ran.err
