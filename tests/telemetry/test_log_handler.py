"""Log lines: one a line, printable, structured; a sink that fails or stands still does no harm."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from pathlib import Path

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.telemetry import log_handler
from draftwire.telemetry.events import log_event
from draftwire.telemetry.log_handler import line_of, logging_to
from draftwire.verifier.generate import generate
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.servers import serving
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.DENSE, 4, 1.0)
LOG = logging.getLogger("draftwire.tests")
EVIL = '"}\n{"event": "forged"}\x1b[31m %s %d {0} \u202e é'


def said(form: str, level: str = "debug") -> list[str]:
    stream = io.StringIO()
    with logging_to(level, form, stream):
        log_event(LOG, logging.INFO, "greeting", f"hello {EVIL}", peer=EVIL, count=3, nothing=None)
        LOG.debug("plain %s", "format")
        try:
            raise ValueError(EVIL)
        except ValueError:
            LOG.exception("it failed")
    return stream.getvalue().splitlines()


def test_json_is_one_object_a_line() -> None:
    lines = [json.loads(line) for line in said("json")]
    assert len(lines) == 3
    assert lines[0]["event"] == "greeting" and lines[0]["count"] == 3
    assert lines[0]["peer"] == EVIL and lines[0]["message"] == f"hello {EVIL}"
    assert "nothing" not in lines[0]
    assert lines[0]["level"] == "info" and lines[0]["time"].endswith("Z")
    assert lines[1]["message"] == "plain format"
    assert lines[2]["error"] == "ValueError"
    assert lines[2]["words"] == EVIL.partition("\n")[0]  # its first line


def test_text_is_printable_and_one_line_each() -> None:
    lines = said("text")
    assert len(lines) == 3
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert "\\x1b" in lines[0] and "%s" in lines[0]
    assert lines[2].endswith('it failed [ValueError: "}]')


def test_levels_hold_back_what_is_below() -> None:
    assert len(said("text", "info")) == 2
    assert len(said("text", "error")) == 1


def test_the_logger_is_as_it_was_afterwards() -> None:
    log = logging.getLogger("draftwire")
    before = (log.level, log.propagate, list(log.handlers))
    said("json")
    assert (log.level, log.propagate, list(log.handlers)) == before


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def text_while_logging(stream: io.TextIOBase) -> tuple[list[int], int, float]:
    """Make a text over TCP with every event of both sides logged; returns ids, lost, seconds."""
    target, engine = ToyTarget(mixed(V, 1), V), ToyDrafter(mixed(V, 1), V)
    began = time.monotonic()
    with logging_to("debug", "json", stream) as handler:  # type: ignore[arg-type]
        with (
            serving(DrafterProgram(engine, DrafterConfig())) as server,
            RemoteDrafter(server.address, target, deadline=20.0) as drafter,
        ):
            run = generate(target, drafter, (1,), Sampling(seed=1, max_tokens=30), POLICY)
            tokens = [emission.token for emission in run]
            assert not run.report.misses
            for number in range(3000):
                log_event(LOG, logging.INFO, "noise", str(number))
        seconds = time.monotonic() - began
    return tokens, handler.lost, seconds


def test_a_full_disk_a_closed_pipe_and_a_reader_that_stops_disturb_no_request(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_handler, "PATIENCE_SECONDS", 0.2)
    expected, lost, _ = text_while_logging(io.StringIO())
    assert lost < 3000
    tokens, lost, _ = text_while_logging(FullDisk())
    assert tokens == expected and lost >= 3000
    reading, writing = os.pipe()
    os.close(reading)
    closed = os.fdopen(writing, "w", buffering=1)
    tokens, lost, _ = text_while_logging(closed)
    assert tokens == expected and lost > 0
    with pytest.raises(BrokenPipeError):
        closed.close()
    reading, writing = os.pipe()
    stuck = os.fdopen(writing, "w", buffering=1)
    tokens, lost, seconds = text_while_logging(stuck)
    assert tokens == expected and lost > 0 and seconds < 10
    os.close(reading)  # frees the thread that waits
    time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_a_record_that_cannot_be_formatted_is_lost_alone(tmp_path: Path) -> None:
    stream = io.StringIO()
    with logging_to("debug", "text", stream) as handler:
        LOG.info("%d", "no number")
        LOG.info("fine")
    assert handler.lost == 1
    assert stream.getvalue().count("\n") == 1
    record = logging.LogRecord("draftwire", logging.INFO, "", 0, "x", None, None)
    assert line_of(record, "text").endswith("info draftwire: x")
