"""Log lines of the command line: text or JSON, one a line, written by a thread of their own.

The program only puts a line into a bounded queue. When the reader of the lines stops, or the disk
is full, lines are lost and counted; the program neither waits nor fails.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TextIO

from draftwire.telemetry.events import FIELDS

MOST_WAITING: Final = 1024
MOST_WORDS: Final = 200  # characters of what an error says
PATIENCE_SECONDS: Final = 1.0
LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")


def line_of(record: logging.LogRecord, form: str) -> str:
    """Return a record as one printable line; form: one of ``FORMATS``."""
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    moment = moment.replace("+00:00", "Z")
    error = words = ""
    if record.exc_info and record.exc_info[0] is not None:
        error = record.exc_info[0].__name__
        words = _words(record.exc_info[1])
    message = record.getMessage()
    if form == "text":
        named = f" [{error}: {words}]" if words else f" [{error}]" if error else ""
        return _printable(f"{moment} {record.levelname.lower()} {record.name}: {message}{named}")
    out: dict[str, object] = {
        "time": moment,
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": message,
    }
    if error:
        out["error"] = error
    if words:
        out["words"] = words
    fields = getattr(record, FIELDS, {})
    out.update((name, value) for name, value in fields.items() if value is not None)
    return json.dumps(out, ensure_ascii=True, default=str)


class QueuedHandler(logging.Handler):
    """Hands lines to a thread that writes them; ``lost`` counts those that could not be."""

    def __init__(self, stream: TextIO, form: str) -> None:
        """Begin to write to ``stream``, which is not closed."""
        super().__init__()
        self.lost = 0
        self._stream = stream
        self._form = form
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="draftwire-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line; never waits, never raises."""
        try:
            self._lines.put_nowait(line_of(record, self._form))
        except Exception:  # full, or a record that is none: a line is lost, nothing else
            self.lost += 1

    def close(self) -> None:
        """Let the lines that wait be written, for a second at the most."""
        try:
            self._lines.put(None, timeout=PATIENCE_SECONDS)
            self._thread.join(PATIENCE_SECONDS)
        except queue.Full:
            self.lost += 1
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a full disk, a closed pipe, a closed stream
                self.lost += 1


@contextmanager
def logging_to(level: str, form: str, stream: TextIO | None = None) -> Iterator[QueuedHandler]:
    """Write what draftwire logs to a stream (standard error) while the block runs."""
    log = logging.getLogger("draftwire")
    handler = QueuedHandler(sys.stderr if stream is None else stream, form)
    before, through = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level.upper())
    log.propagate = False
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = through
        handler.close()


def _words(error: BaseException | None) -> str:
    """Return the first line of what an engine's error says, cut; a prompt has more of them."""
    try:
        return str(error).partition("\n")[0][:MOST_WORDS]
    except Exception:  # the error is not ours
        return ""


def _printable(text: str) -> str:
    """Return the text with everything escaped that is not printable ASCII."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each.isascii() and each.isprintable() else each.encode("unicode_escape").decode()
        for each in text
    )
