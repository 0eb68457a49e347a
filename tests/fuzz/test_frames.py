"""A short campaign of mutated frames with a fixed seed, and proof that a wrong reader is found."""

from __future__ import annotations

import pytest

from draftwire.wire import checks, frames
from draftwire.wire.registry import MessageType
from testing.fuzz.run import Block, run_block

SEED = 1


def campaign(cases: int) -> Block:
    return run_block(("frames", SEED, 0, cases))


def test_every_frame_is_read_or_refused_alike() -> None:
    # about 4 s
    block = campaign(3000)
    assert not block.findings, block.findings[0]
    assert block.outcomes["read"] > 300
    assert len(block.outcomes) > 25, "the mutations reach the checks"


def test_a_check_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks.CHECKS, MessageType.RESET, lambda *_: None)
    assert any("oracle" in finding for finding in campaign(2000).findings)


def test_a_reader_that_stops_a_byte_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "TRAILER_BYTES", 3)
    assert campaign(50).findings


def test_anything_but_a_protocol_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setitem(checks.CHECKS, MessageType.COMMIT, fails)
    assert any("KeyError" in finding for finding in campaign(300).findings)
