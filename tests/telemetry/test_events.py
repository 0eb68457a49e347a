"""Events: a handler that fails harms no request; what a peer writes is short, and seldom."""

from __future__ import annotations

import logging

from draftwire.telemetry.events import Limiter, log_event, one_line

LOG = logging.getLogger("draftwire.tests")


def test_a_limiter_lets_one_through_and_counts_the_others() -> None:
    now = [0.0]
    limiter = Limiter(lambda: now[0], seconds=1.0, peers=2)
    assert [limiter.passes("a") for _ in range(4)] == [0, None, None, None]
    assert limiter.passes("b") == 0
    now[0] = 1.0
    assert limiter.passes("a") == 3
    for index in range(100):
        assert limiter.passes(f"stranger {index}") == 0
    # The last two are remembered, and nobody else: whoever was forgotten begins anew.
    assert [limiter.passes(f"stranger {index}") for index in (98, 99)] == [None, None]
    assert limiter.passes("stranger 97") == 0
    assert limiter.passes("a") == 0


def test_one_line_is_short_and_escaped() -> None:
    assert one_line("a\nb\x1b") == "a\\nb\\x1b"
    assert len(one_line("x" * 10_000)) == 200


def test_a_handler_of_the_application_that_raises_is_no_fault_of_a_request() -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError("no space")

    broken = Broken()
    LOG.addHandler(broken)
    try:
        log_event(LOG, logging.ERROR, "event", "text")
    finally:
        LOG.removeHandler(broken)
