"""The sharding emulator: any number of ranks in one process, one after another (A25).

Each rank's steps run until they have something to tell the others; when all have, each goes on with
the answer. There is no thread and no network in it, so a run is a function of its arguments, and
what it computes is what separate machines would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import numpy as np

from draftwire.kernels.shards.shard import LEADER, Exchange, Integers, Kind, Result, Steps


class OutOfStepError(RuntimeError):
    """Ranks that are not at the same collective: a bug of the steps, never of the data."""


def emulate(ranks: Sequence[Steps[Result]]) -> list[Result]:
    """Run the steps of all ranks, in the order of their shards; returns what each returned.

    Raises what the first rank raised, after closing the others, and OutOfStepError.
    """
    results: dict[int, Result] = {}
    answers: list[Integers | None] = [None] * len(ranks)
    try:
        while True:
            told: list[Exchange] = []
            for index, steps in enumerate(ranks):
                try:
                    answer = answers[index]
                    told.append(next(steps) if answer is None else steps.send(answer))
                except StopIteration as finished:
                    results[index] = finished.value
            if not told:
                return [results[index] for index in range(len(ranks))]
            answers = list(_met(told, len(ranks)))
    finally:
        for steps in ranks:
            steps.close()


def _met(told: list[Exchange], size: int) -> list[Integers]:
    kinds = {(each.kind, each.values.shape, each.values.dtype.str) for each in told}
    if len(told) < size or len(kinds) > 1 or told[0].values.dtype != np.int64:
        raise OutOfStepError(f"{len(told)} of {size} ranks are at {kinds}")
    answer = np.array(_COMBINED[told[0].kind]([each.values for each in told]))
    answer.flags.writeable = False  # all ranks are handed the same one
    return [answer] * size


_COMBINED: Final[dict[Kind, Callable[[list[Integers]], Integers]]] = {
    Kind.MAXIMUM: lambda arrays: reduce(np.maximum, arrays),
    Kind.SUM: lambda arrays: reduce(np.add, arrays),
    Kind.GATHER: np.stack,
    Kind.BROADCAST: lambda arrays: arrays[LEADER],
}
