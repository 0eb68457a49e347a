"""Rows of the target's hidden states to the bytes of a STEP and back (P37)."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from draftwire.wire.registry import HiddenDtype
from draftwire.wire.states import StateFormat


def encode_states(rows: NDArray[np.float32], dtype: HiddenDtype) -> bytes:
    """Return the bytes of rows (R, elements) up to the first that is not finite in this type.

    BFLOAT16 is rounded to nearest, ties to even; a number beyond its largest is not finite.
    """
    bits = np.ascontiguousarray(rows, "<f4").view("<u4")
    if dtype is HiddenDtype.BFLOAT16:
        # In 64 bits: the largest negative numbers would go round 2^32.
        wide = bits.astype(np.uint64)
        rounded = (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
        finite = np.isfinite(rows) & (rounded & 0x7F80 != 0x7F80)
        items = rounded.astype("<u2")
    else:
        finite, items = np.isfinite(rows), bits
    whole = finite.all(axis=1)
    count = len(whole) if whole.all() else int(whole.argmin())
    return items[:count].tobytes()


def decode_states(data: bytes | memoryview, form: StateFormat) -> NDArray[np.float32]:
    """Return rows (R, elements) of their bytes, memory of their own; exact in either type."""
    if form.dtype is HiddenDtype.BFLOAT16:
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(-1, form.elements)
    return np.frombuffer(data, "<f4").astype(np.float32).reshape(-1, form.elements)


def projection_digest(weight: NDArray[np.float32], scale: NDArray[np.float32]) -> bytes:
    """Return SHA-256 of a projection (d, n x d) and of the scale of the norm behind it, (d,)."""
    digest = hashlib.sha256(np.ascontiguousarray(weight, "<f4").tobytes())
    digest.update(np.ascontiguousarray(scale, "<f4").tobytes())
    return digest.digest()
