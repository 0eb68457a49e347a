"""A short campaign of mutated conversations with a fixed seed; a wrong machine is found."""

from __future__ import annotations

from random import Random

import pytest

from draftwire.session.link import Link
from spec.oracle.frames import TYPES
from testing.fuzz.machines import conversations
from testing.fuzz.pieces import written
from testing.fuzz.run import Block, run_block
from testing.fuzz.transcripts import check, materials

SEED = 1


def campaign(cases: int) -> Block:
    return run_block(("transcripts", SEED, 0, cases))


def test_conversations_hold_every_message() -> None:
    talks = materials()
    types = {TYPES[piece.type] for talk in talks for turn in talk.turns for piece in turn}
    assert types >= set(TYPES.values()) - {"ERROR"}
    for talk in talks:
        assert check(talk, written(talk.turns, talk.keyed), Random(0)) == "followed"


def test_every_conversation_is_followed_or_refused_once() -> None:
    # about 4 s
    block = campaign(250)
    assert not block.findings, block.findings[0]
    assert block.outcomes["followed"] > 30
    assert len(block.outcomes) > 10


def test_a_second_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Link._put

    def twice(self: Link, message: object) -> None:
        put(self, message)  # type: ignore[arg-type]
        if type(message).__name__ == "ErrorMessage":
            put(self, message)  # type: ignore[arg-type]

    monkeypatch.setattr(Link, "_put", twice)
    assert campaign(20).findings


def test_recording_is_the_same_every_time() -> None:
    assert conversations() == conversations()
