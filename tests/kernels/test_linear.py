"""Rows of a matrix product: the same bits in any company, at any place and with any threads."""

from __future__ import annotations

import numpy as np
import pytest

from draftwire.kernels.linear import RowProduct

SHAPES = [(1, 1), (3, 5), (4, 8), (5, 7), (8, 16), (13, 33), (64, 64), (97, 192), (640, 512)]


def product(rows: np.ndarray, weight: np.ndarray, threads: int = 1) -> np.ndarray:
    out = np.full((len(rows), len(weight)), np.nan, np.float32)
    RowProduct(threads)(rows, weight, out)
    return out


@pytest.mark.parametrize(("outputs", "width"), SHAPES)
def test_a_row_has_the_same_bits_at_every_place_of_every_batch(outputs: int, width: int) -> None:
    source = np.random.default_rng(outputs * 1000 + width)
    weight = source.normal(size=(outputs, width)).astype(np.float32)
    rows = source.normal(size=(12, width)).astype(np.float32)
    alone = [product(row[None], weight)[0] for row in rows]
    for count in range(1, len(rows) + 1):
        for begin in range(len(rows) - count + 1):
            company = np.ascontiguousarray(rows[begin : begin + count][::-1])
            together = product(company, weight)[::-1]
            assert together.tobytes() == np.stack(alone[begin : begin + count]).tobytes()


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_no_bit(threads: int) -> None:
    source = np.random.default_rng(threads)
    weight = source.normal(size=(1027, 300)).astype(np.float32)
    rows = source.normal(size=(3, 300)).astype(np.float32)
    assert product(rows, weight, threads).tobytes() == product(rows, weight).tobytes()


@pytest.mark.parametrize(("outputs", "width"), SHAPES)
def test_the_product_is_within_the_bound_of_any_order_of_additions(
    outputs: int, width: int
) -> None:
    """|error| <= gamma(K) sum |w x|, with gamma(K) = K u / (1 - K u) and u = 2^-24 (Higham)."""
    source = np.random.default_rng(width)
    weight = source.normal(size=(outputs, width)).astype(np.float32)
    rows = source.normal(size=(3, width)).astype(np.float32)
    exact = rows.astype(np.float64) @ weight.astype(np.float64).T
    size = np.abs(rows).astype(np.float64) @ np.abs(weight).astype(np.float64).T
    unit = width * 2.0**-24
    assert np.all(np.abs(product(rows, weight) - exact) <= unit / (1 - unit) * size)


def test_nan_and_infinity_stay_in_their_own_row() -> None:
    weight = np.ones((6, 5), np.float32)
    rows = np.ones((3, 5), np.float32)
    rows[0, 2], rows[2, 1] = np.nan, np.inf
    out = product(rows, weight)
    assert np.isnan(out[0]).all()
    assert (out[1] == 5).all()
    assert np.isposinf(out[2]).all()
