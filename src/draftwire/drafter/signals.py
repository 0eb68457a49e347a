"""What SIGINT and SIGTERM do to a serving drafter."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def take_signals(
    stop: Callable[[], None], drain: Callable[[], None], wake: int
) -> Callable[[], None]:
    """Let SIGINT call ``stop`` and SIGTERM ``drain``; returns what undoes that.

    wake: a descriptor that a byte is written to, so that a selector returns. Signals are taken
    over in the main thread only; elsewhere nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [
        signal.signal(signal.SIGINT, lambda *_: stop()),
        signal.signal(signal.SIGTERM, lambda *_: drain()),
    ]
    woken = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def restore() -> None:
        signal.set_wakeup_fd(woken)
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)

    return restore
