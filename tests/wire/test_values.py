"""Values that are made quickly are frozen dataclasses in everything but the guard."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from draftwire.wire.messages import Complete
from draftwire.wire.registry import Status
from draftwire.wire.values import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: int = 7
    rest: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.left < 0:
            raise ValueError("left is negative")


def test_everything_but_the_guard_is_as_it_was() -> None:
    one, other = Pair(1), Pair(1, 7, [])
    assert one == other
    assert one.rest is not other.rest
    assert repr(one) == "Pair(left=1, right=7, rest=[])"
    assert replace(one, right=2) == Pair(left=1, right=2)
    assert not hasattr(one, "__dict__")
    with pytest.raises(ValueError, match="negative"):
        Pair(-1)
    with pytest.raises(TypeError):
        Pair()  # type: ignore[call-arg]


def test_messages_keep_their_hash_and_their_slots() -> None:
    one = Complete(1, 2, Status.OK, 3, 4, 5, bytes(16), 6, 7, 8)
    assert hash(one) == hash(replace(one))
    assert {one} == {replace(one)}
    assert one != replace(one, round=5)
    assert not hasattr(one, "__dict__")
