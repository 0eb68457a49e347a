"""Rows of logits that quantisers get wrong: flat, peaked, near-tied, tiny, one legal id."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SIZES = (1, 2, 3, 31, 32, 33, 127, 128, 129, 300, 1000)


def adversarial(size: int, rng: np.random.Generator) -> Iterator[NDArray[np.float32]]:
    """Hand-made and random rows of ``size`` logits."""

    def row(values: object) -> NDArray[np.float32]:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(values, np.float32), size))

    normal = rng.standard_normal(size)
    yield row(0.0)
    yield row(-7.5)
    yield row(3e38)
    yield row(normal)
    yield row(normal * 8)
    yield row(normal * 1e30)
    yield row(normal * 1e-40)  # subnormal in binary32
    yield row(normal * 0.01 + 88)
    yield row(-np.arange(size) * 0.25)
    yield row(np.arange(size) % 3)
    yield row(np.arange(size) % 2 * -0.0)
    yield row(np.where(np.arange(size) % 2, 0.0, -0.0))
    yield row(np.round(normal * 2) / 2)
    yield row(np.float32(1) + np.float32(2**-23) * rng.integers(0, 3, size))
    yield row(np.where(np.arange(size) == size // 2, 0.0, -np.inf))
    yield row(np.where(np.arange(size) == size - 1, 0.0, -26.34))
    yield row(np.where((rng.random(size) < 0.9) & (np.arange(size) > 0), -np.inf, normal))
    # Around the cut-off, around w = 1, and where k of exp64 changes.
    for centre in (-27.0, -38 * np.log(2), -0.5 * np.log(2), -10.5 * np.log(2)):
        steps = centre + (np.arange(size) - size // 2) * 2.0**-21
        yield row(np.where(np.arange(size) == 0, 0.0, steps))
