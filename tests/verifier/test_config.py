"""The verifier's configuration, and the keyword arguments that build it."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire.errors import ConfigurationError
from draftwire.session.slot_buffers import SlotPlan
from draftwire.verifier.config import VerifierConfig, configured
from draftwire.verifier.remote import RemoteDrafter
from draftwire.wire.registry import Adaptation, HiddenDtype, WireVersion
from testing.toys.models import ToyTarget

VALUES: dict[str, Any] = {
    "version": WireVersion.V1,
    "deadline": 3.0,
    "connect_timeout": 2.0,
    "audit": False,
    "max_sessions": 3,
    "max_depth": 4,
    "max_support": 5,
    "draft_identity": bytes(31) + b"x",
    "adaptation": Adaptation.NATIVE,
    "shard_count": 2,
    "key": b"k" * 32,
    "slots": SlotPlan(2, 1000),
    "early_stop": True,
    "mirror": False,
    "state_rows": 7,
    "state_dtype": HiddenDtype.FLOAT32,
    "state_projection": SimpleNamespace(digest=bytes(32), fuse=lambda rows: rows),
}


def test_every_field_is_a_keyword_argument() -> None:
    assert {each.name for each in fields(VerifierConfig)} == set(VALUES)
    for name, value in VALUES.items():
        assert value != getattr(VerifierConfig(), name)
        drafter = RemoteDrafter("127.0.0.1:1", ToyTarget(lambda _: (1, 1), 2), **{name: value})
        assert drafter.config == replace(VerifierConfig(), **{name: value})


def test_an_option_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"no option dedline: they are .*deadline"):
        RemoteDrafter("127.0.0.1:1", ToyTarget(lambda _: (1, 1), 2), dedline=1.0)
    assert configured(VerifierConfig(audit=False), max_depth=3) == VerifierConfig(
        audit=False, max_depth=3
    )
    assert configured(None) == VerifierConfig()


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(VerifierConfig(key=b"secret"))


@pytest.mark.parametrize("name", ["deadline", "connect_timeout"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_times_without_a_meaning_are_refused(name: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be finite"):
        VerifierConfig(**{name: seconds})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("state_rows", -1), ("state_rows", 1 << 16), ("state_dtype", HiddenDtype.FLOAT16)],
)
def test_states_that_no_step_can_hold_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        configured(None, **{name: value})
