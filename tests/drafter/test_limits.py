"""Limits of a drafter that are no numbers, or none that a clock takes (case M33)."""

from __future__ import annotations

from typing import Any

import pytest

from draftwire.bounds import MOST_SECONDS, shown
from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.limits import PeerLimits
from draftwire.errors import ConfigurationError
from draftwire.verifier.config import VerifierConfig

NO_NUMBER: list[Any] = ["x", "5", None, True, [], float("nan"), float("inf"), -1, 10**400, 10**5000]


@pytest.mark.parametrize("value", NO_NUMBER, ids=lambda value: shown(value)[:8])
@pytest.mark.parametrize(
    "name", ["lease_seconds", "yield_seconds", "handshake_seconds", "bytes_per_second"]
)
def test_times_and_rates_are_numbers(name: str, value: Any) -> None:
    """Case M33: a lease of "x"."""
    if (name, value) == ("yield_seconds", None):
        assert PeerLimits(yield_seconds=None).evict_idle_after == 10
        return
    with pytest.raises(ConfigurationError, match=name) as refused:
        PeerLimits(**{name: value})
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize("value", ["x", None, True, 1.5, -1], ids=repr)
@pytest.mark.parametrize(
    "name", ["max_sessions", "max_depth", "max_reply_memory", "max_context", "max_reply_bytes"]
)
def test_counts_are_whole(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        DrafterConfig(**{name: value})


@pytest.mark.parametrize("value", [*NO_NUMBER[:2], *NO_NUMBER[3:]], ids=lambda v: shown(v)[:8])
@pytest.mark.parametrize("name", ["deadline", "connect_timeout"])
def test_deadlines_are_seconds(name: str, value: Any) -> None:
    """Case M33: a deadline of "text", of 10**400, of True."""
    with pytest.raises(ConfigurationError, match=name) as refused:
        VerifierConfig(**{name: value})
    assert len(str(refused.value)) < 120


def test_numbers_of_other_libraries_are_numbers() -> None:
    import numpy as np

    assert PeerLimits(lease_seconds=np.float32(20)).lease_seconds == 20
    assert DrafterConfig(max_depth=np.int64(3)).max_depth == 3
    assert VerifierConfig(deadline=MOST_SECONDS).deadline == MOST_SECONDS
