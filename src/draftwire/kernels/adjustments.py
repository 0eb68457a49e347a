"""What processors do to one row of logits (A30): ids of it, and how each of their logits changes.

Which ids these are follows from the text and is worked out on the host; the logits stay where they
lie. Ids of one adjustment are different, int64 (n,); n may be 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Scaled:
    """``z / factor`` where ``z > 0``, otherwise ``z * factor``. values: the factors, binary32."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Added:
    """``z + value``. values: binary32 (n,), -infinity bans."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Kept:
    """``z + (-infinity)`` for every id but these."""

    ids: NDArray[np.int64]


Adjustment: TypeAlias = Scaled | Added | Kept


@dataclass(frozen=True, slots=True)
class Step:
    """Adjustments of one kind, of different rows, as one.

    rows: which. places: of their ids in the logits (N, V) as one array. values: as in the kind;
    none of Kept.
    """

    kind: type[Adjustment]
    rows: list[int]
    places: NDArray[np.int64]
    values: NDArray[np.float32]


_NONE: Final = np.empty(0, np.float32)


def steps_of(adjustments: Sequence[Sequence[Adjustment]], width: int) -> Iterator[Step]:
    """Yield the adjustments of N rows of ``width`` ids as steps; each row's keep their order."""
    for place in zip_longest(*adjustments):
        for kind in (Scaled, Added, Kept):
            own = [(row, each) for row, each in enumerate(place) if isinstance(each, kind)]
            if not own:
                continue
            yield Step(
                kind,
                [row for row, _ in own],
                np.concatenate([each.ids + row * width for row, each in own]),
                _NONE if kind is Kept else np.concatenate([each.values for _, each in own]),  # type: ignore[union-attr]
            )
