"""CRC32C (Castagnoli, RFC 3720 section 12.1) of any buffer, without copying large ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import google_crc32c

_COPY_BELOW = 4096  # bytes; below this one small copy is cheaper than making a ctypes view
_CHUNK = 1 << 16  # bytes; read-only views are fed through a copy of this size that stays in cache


extend: Final[Callable[[int, Any], int]] = google_crc32c.extend
"""``crc32c`` with its arguments turned round, for ``bytes`` and contiguous arrays."""


@lru_cache(maxsize=64)
def _array_type(length: int) -> Any:
    return ctypes.c_char * length


def crc32c(data: bytes | bytearray | memoryview, initial: int = 0) -> int:
    """Return the CRC32C of ``data`` (contiguous bytes), continued from ``initial``, as a u32.

    The C extension takes only buffers that need no release. ``bytes`` are handed over as they are;
    a writable view is lent to it through ctypes; other views go through small copies.
    """
    if isinstance(data, bytes):
        return extend(initial, data)
    view = memoryview(data)
    length = view.nbytes
    if length <= _COPY_BELOW:
        return extend(initial, view.tobytes())
    if not view.readonly:
        return extend(initial, _array_type(length).from_buffer(view))
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    checksum = initial
    for begin in range(0, length, _CHUNK):
        checksum = extend(checksum, bytes(view[begin : begin + _CHUNK]))
    return checksum
