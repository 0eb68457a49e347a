"""What the leader tells the other ranks to do next: one number for what, then whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from draftwire.errors import TransportError
from draftwire.kernels.rows import QRow
from draftwire.kernels.shards.shard import Collective, Integers
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

POLICY_NUMBERS: Final = 7


class DivergedError(TransportError):
    """A rank holds another text than the leader: nothing more may come out of this group."""


class Command(IntEnum):
    """Everything that a leader may ask of the others."""

    STOP = 0
    OPEN = 1
    CLOSE = 2
    TRUNCATE = 3
    PROPOSE = 4
    SCORE = 5
    VERIFY = 6
    PROPOSE_SHARDS = 7
    LINK_OPEN = 8
    LINK_ASK = 9
    LINK_SKIP = 10
    LINK_END = 11
    LINK_CONTEXT = 12


LINK_COMMANDS: Final = frozenset(
    {
        Command.LINK_OPEN,
        Command.LINK_ASK,
        Command.LINK_SKIP,
        Command.LINK_END,
        Command.LINK_CONTEXT,
    }
)


def send_command(
    group: Collective, command: Command, numbers: Sequence[int] | Integers = ()
) -> None:
    """As the leader: give a command; returns when it is on its way."""
    payload = np.asarray(numbers, np.int64)
    group.broadcast(np.array([command, payload.size], np.int64))
    if payload.size:
        group.broadcast(payload)


def receive_command(group: Collective) -> tuple[Command, Integers]:
    """As any other rank: wait for the next command, for as long as the leader lives."""
    kind, size = group.broadcast(np.zeros(2, np.int64)).tolist()
    payload = np.zeros(size, np.int64)
    return Command(kind), group.broadcast(payload) if size else payload


def bits_of(number: float) -> int:
    """A binary64 number as the int64 of the same bits."""
    return int(np.float64(number).view(np.int64))


def number_of(bits: int) -> float:
    """The binary64 number of :func:`bits_of`."""
    return float(np.int64(bits).view(np.float64))


def numbers_of(policy: ProposalPolicy) -> list[int]:
    """A policy as POLICY_NUMBERS whole numbers."""
    numbers = [policy.layout, policy.depth, bits_of(policy.temperature)]
    return [*numbers, policy.top_k, policy.top_p, policy.min_p, policy.support]


def policy_of(numbers: Sequence[int]) -> ProposalPolicy:
    """The policy of :func:`numbers_of`."""
    layout, depth, temperature, top_k, top_p, min_p, support = numbers
    return ProposalPolicy(
        Layout(layout),
        depth,
        number_of(temperature),
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        support=support,
    )


def packed(counts: NDArray[np.int32]) -> Integers:
    """Counts two to a number, so that they cross at the size that they have."""
    flat = counts.reshape(-1)
    return np.append(flat, np.zeros(flat.size % 2, np.int32)).view(np.int64)


def unpacked(numbers: Integers, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """The counts of :func:`packed`."""
    flat = np.ascontiguousarray(numbers).view(np.int32)
    return flat[: math.prod(shape)].reshape(shape)


def numbers_of_rows(rows: Sequence[QRow]) -> Integers:
    """Whole q's as numbers: a sparse row as ids and counts, a dense one as counts of every id.

    Two int32 to a number: of each row how many entries it names (0 = all of the V that follow),
    their ids, their counts.
    """
    said: list[NDArray[np.int32]] = []
    for row in rows:
        if row.ids is None:
            said += [np.array([0, row.vocab_size], np.int32), row.counts]
        else:
            said += [np.array([len(row.ids), row.vocab_size], np.int32), row.ids, row.counts]
    return packed(np.concatenate(said) if said else np.empty(0, np.int32))


def rows_of_numbers(numbers: Integers, depth: int) -> list[QRow]:
    """The q's of :func:`numbers_of_rows`."""
    said = np.ascontiguousarray(numbers).view(np.int32)
    rows, at = [], 0
    for _ in range(depth):
        named, vocab_size = said[at : at + 2].tolist()
        at += 2
        ids = said[at : at + named] if named else None
        at += named
        width = named or vocab_size
        rows.append(QRow(vocab_size, ids, said[at : at + width]))
        at += width
    return rows


def signed(identifier: int) -> int:
    """A u64 as the int64 of the same bits."""
    return identifier - (1 << 64) if identifier >> 63 else identifier


def unsigned(number: int) -> int:
    """The u64 of :func:`signed`."""
    return number % (1 << 64)
