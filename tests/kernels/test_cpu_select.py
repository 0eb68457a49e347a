"""Selection by histograms equals selection by sorting."""

import numpy as np
import pytest

from draftwire.kernels.cpu import select_loops as cpu_select


@pytest.mark.parametrize("width", [1, 5, 11, 12, 22, 32, 39, 62, 63])
def test_the_kth_largest_is_that_of_the_sorted_keys(width):
    rng = np.random.default_rng(width)
    for size in (1, 2, 7, 300):
        for spread in (width, min(width, 3)):
            keys = rng.integers(0, 1 << spread, size, dtype=np.int64) << (width - spread)
            ordered = np.sort(keys)[::-1]
            for wanted in {1, 2, size // 2, size - 1, size} & set(range(1, size + 1)):
                threshold, ties, equal = cpu_select.kth_largest(
                    keys, wanted, width, np.empty(size, np.int64)
                )
                assert threshold == ordered[wanted - 1]
                assert equal == (keys == threshold).sum()
                assert ties == wanted - (keys > threshold).sum()
                chosen = cpu_select.first_of_threshold(keys, threshold, ties, wanted)
                expected = sorted(sorted(range(size), key=lambda i: (-keys[i], i))[:wanted])
                assert chosen.tolist() == expected


@pytest.mark.parametrize("width", [3, 11, 39])
def test_the_heaviest_prefix_ends_where_the_sorted_sum_reaches_the_mass(width):
    rng = np.random.default_rng(width)
    for size in (1, 2, 9, 200):
        weights = rng.integers(0, 1 << rng.integers(1, width + 1), size, dtype=np.int64)
        weights[0] += weights.sum() == 0
        order = sorted(range(size), key=lambda i: (-weights[i], i))
        total = int(weights.sum())
        for needed in {1, total // 3 + 1, total // 2 + 1, total}:
            threshold, ties = cpu_select.heaviest_until(
                weights, needed, width, np.empty(size, np.int64)
            )
            mass, prefix = 0, []
            for i in order:
                if mass >= needed:
                    break
                mass += int(weights[i])
                prefix.append(i)
            above = np.flatnonzero(weights > threshold).tolist()
            at = np.flatnonzero(weights == threshold)[:ties].tolist()
            assert sorted(above + at) == sorted(prefix)
            assert len(at) == ties
