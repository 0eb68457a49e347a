"""What a logits processor may keep outside itself: closures, globals, attributes of its class."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any, Final

_PLAIN: Final = (bool, int, float, str, bytes, list, dict, set, tuple, type(None))


def outside_state(processor: Any) -> list[Any]:
    """Return copies of the plain data that a processor's code can reach and no copy of it holds.

    A processor that counts its calls there answers otherwise the more it is asked; copies of two
    moments that differ show it before its answers do.
    """
    found: list[Any] = []
    for value in _reached(processor):
        if isinstance(value, _PLAIN):
            with suppress(Exception):  # of whatever it holds: then nothing is known of it
                found.append(copy.deepcopy(value))
    return found


def _reached(processor: Any) -> Iterator[Any]:
    allowed = getattr(processor, "_prefix_allowed_tokens_fn", None)
    for each in (processor, allowed):
        own = type(each)
        if each is None or own.__module__.startswith("transformers."):
            continue
        if isinstance(each, FunctionType):
            yield from _of_function(each)
        else:
            yield from (value for name, value in vars(own).items() if not name.startswith("__"))
            called = vars(own).get("__call__")
            if isinstance(called, FunctionType):
                yield from _of_function(called)


def _of_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
