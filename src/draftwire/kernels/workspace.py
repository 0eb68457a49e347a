"""Arrays that a thread uses again and again instead of asking the system for fresh pages."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class Workspace(threading.local):
    """Working arrays by name, one set a thread; nothing handed to a caller may be a view of one.

    At V = 262,144 a fresh array of 2 MiB costs more in page faults than the loop that fills it.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def get(self, name: str, size: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
        """An uninitialised array (size,); it is the caller's until the name is asked for again."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(size, dtype)
        return array[:size]
