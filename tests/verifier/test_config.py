"""The verifier's configuration, and the keyword arguments that build it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from draftwire.errors import ConfigurationError
from draftwire.verifier.config import VerifierConfig, VerifierOptions


def test_every_field_is_a_keyword_argument() -> None:
    assert {each.name for each in fields(VerifierConfig)} == set(VerifierOptions.__annotations__)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(VerifierConfig(key=b"secret"))


@pytest.mark.parametrize("name", ["deadline", "connect_timeout"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_times_without_a_meaning_are_refused(name: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be finite"):
        VerifierConfig(**{name: seconds})  # type: ignore[arg-type]
