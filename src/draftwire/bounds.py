"""Numbers that a user gives: what they may be, said in one sentence with their name."""

from __future__ import annotations

import math
from operator import index
from typing import Any, Final

from draftwire.errors import ConfigurationError

MOST_SECONDS: Final = 1e9
"""Of any time that is waited for: thirty years, which every clock and every socket takes."""


def require_seconds(name: str, value: Any) -> None:
    """Raise ConfigurationError for what is no time in seconds above 0."""
    require_number(name, value, most=MOST_SECONDS, unit=" seconds")


def require_number(name: str, value: Any, *, most: float = math.inf, unit: str = "") -> None:
    """Raise ConfigurationError for what is no finite number above 0 and at most ``most``."""
    limit = f" and at most {most:g}" if math.isfinite(most) else ""
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and 0 < number <= most):
        raise ConfigurationError(
            f"{name} must be finite and above 0{unit}{limit}, not {shown(value)}"
        )


def require_whole(name: str, value: Any, least: int) -> None:
    """Raise ConfigurationError for what is no whole number of ``least`` or more."""
    try:
        number = least - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigurationError(f"{name} must be {least} or more, and whole, not {shown(value)}")


def shown(value: Any) -> str:
    """Return a value as it is shown in a sentence, however long it is."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 40 else text[:37] + "..."
