"""Rows of states to bytes and back: rounding, and what is not finite (P37, case M13)."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from draftwire.rows.states import decode_states, encode_states, projection_digest
from draftwire.wire.registry import HiddenDtype
from draftwire.wire.states import StateFormat, finite

BFLOAT16, BINARY32 = HiddenDtype.BFLOAT16, HiddenDtype.FLOAT32


def rows_of(count: int, elements: int = 6) -> np.ndarray:
    bits = np.random.default_rng(count).integers(0, 1 << 32, (count, elements), dtype=np.uint32)
    bits[bits & 0x7F800000 == 0x7F800000] &= 0xBFFFFFFF  # finite, of every size and sign
    return bits.view(np.float32)


def test_binary32_travels_as_it_is() -> None:
    rows = rows_of(500)
    data = encode_states(rows, BINARY32)
    assert data == rows.astype("<f4").tobytes()
    back = decode_states(memoryview(data), StateFormat((0, 3), 3, BINARY32))
    assert back.tobytes() == rows.tobytes()
    assert back.flags.writeable


def test_bfloat16_is_torch_s_rounding() -> None:
    rows = rows_of(4000)
    rows = rows[(np.abs(rows) < 3e38).all(axis=1)]
    assert len(rows) > 1000
    data = encode_states(rows, BFLOAT16)
    due = torch.from_numpy(rows.copy()).to(torch.bfloat16).float().numpy()
    back = decode_states(data, StateFormat((0, 3), 3, BFLOAT16))
    assert back.tobytes() == due.tobytes()
    assert finite(data, BFLOAT16)


@pytest.mark.parametrize("dtype", [BFLOAT16, BINARY32])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", range(4))
def test_rows_end_before_the_first_that_is_not_finite(
    dtype: HiddenDtype, value: float, at: int
) -> None:
    rows = np.ones((4, 3), np.float32)
    rows[at, 2] = value
    data = encode_states(rows, dtype)
    assert len(decode_states(data, StateFormat((0,), 3, dtype))) == at


@pytest.mark.parametrize("sign", [1, -1])
def test_what_rounds_beyond_the_largest_bfloat16_is_not_finite_there(sign: int) -> None:
    largest = np.array([[sign * np.finfo(np.float32).max]], np.float32)
    assert encode_states(largest, BFLOAT16) == b""
    assert len(encode_states(largest, BINARY32)) == 4
    below = np.array([0x7F7F7FFF], np.uint32).view(np.float32)[None] * sign
    assert len(encode_states(below, BFLOAT16)) == 2


def test_the_digest_is_that_of_both_tensors_as_binary32() -> None:
    weight, scale = rows_of(4), np.arange(4, dtype=np.float32)
    due = hashlib.sha256(weight.tobytes() + scale.tobytes()).digest()
    assert projection_digest(weight, scale) == due
    assert projection_digest(np.asfortranarray(weight), scale) == due
    assert projection_digest(weight, scale + 1) != due
