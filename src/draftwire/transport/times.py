"""Deadlines, in seconds of ``time.monotonic``, as a call to the system can be told them."""

from __future__ import annotations

import math
import select
import time
from typing import Final

LONGEST_WAIT: Final = 86_400.0  # seconds; a call to the system waits no longer than that


def seconds_until(deadline: float) -> float:
    """Return what a socket may be told to wait: the seconds left, a day at most.

    More than the system's clock types hold would be an OverflowError of the socket call.
    """
    return min(deadline - time.monotonic(), LONGEST_WAIT)


def wait_until(ready: select.poll, deadline: float) -> None:
    """Wait until a socket is ready, in whole milliseconds: no turn is for nothing.

    Raises TimeoutError past the deadline, and OSError.
    """
    left = seconds_until(deadline)
    if left <= 0 or not ready.poll(math.ceil(left * 1e3)):
        raise TimeoutError("the deadline has passed")
