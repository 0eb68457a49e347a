"""Contexts of sessions that are over, for a later one whose prefix begins as theirs did (M13).

A turn of a chat repeats the turns before it: a new session goes on from the context that shares the
longest prefix with it, and reads what is new. What is kept is bounded in bytes, the longest unused
goes first, and each owner has its own: nobody can tell by the time that a prompt takes whether
somebody else has sent one that begins alike.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic

from draftwire.drafter.contexts import HeldContext
from draftwire.drafter.engine import Context
from draftwire.session.prefix import common_tokens

LEAST_SHARED = 16
"""Tokens that a prefix has to share for a context to be worth its cut."""


@dataclass(slots=True)
class FinishedCounters:
    """kept, reused, evicted: contexts. tokens: that were not read again."""

    kept: int = 0
    reused: int = 0
    evicted: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Finished(Generic[Context]):
    held: HeldContext[Context]
    owner: Hashable
    size: int


class FinishedContexts(Generic[Context]):
    """Contexts by owner, the longest unused first. A context is here or with one session."""

    def __init__(self, most: int, close: Callable[[Context], None]) -> None:
        """Begin with none. most: bytes over all owners; close: frees a context, never raises."""
        self.counters = FinishedCounters()
        self.bytes = 0
        self._most = most
        self._close = close
        self._all: OrderedDict[int, _Finished[Context]] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        """Contexts that are kept; any thread may ask."""
        return len(self._all)

    def put(self, owner: Hashable, held: HeldContext[Context], size: int) -> None:
        """Keep the context of a session that is over; size: bytes."""
        if size > self._most or held.start or len(held.tokens) < LEAST_SHARED:
            self._close(held.context)
            return
        held.mirror = None  # of a text that is over
        self._next += 1
        self._all[self._next] = _Finished(held, owner, size)
        self.bytes += size
        self.counters.kept += 1
        while self.bytes > self._most:
            self._drop(next(iter(self._all)))
            self.counters.evicted += 1

    def take(self, owner: Hashable, prefix: array[int]) -> tuple[HeldContext[Context], int] | None:
        """Return the owner's context that shares most with a prefix, and how many tokens; or None.

        It is no longer kept then.
        """
        best, shared = 0, LEAST_SHARED - 1
        for number, each in self._all.items():
            if each.owner == owner:
                common = common_tokens(each.held.tokens, prefix)
                if common > shared:
                    best, shared = number, common
        if not best:
            return None
        found = self._all.pop(best)
        self.bytes -= found.size
        self.counters.reused += 1
        self.counters.tokens += shared
        return found.held, shared

    def forget(self, owner: Hashable) -> None:
        """Free all of an owner's, who will not come again."""
        for number in [number for number, each in self._all.items() if each.owner == owner]:
            self._drop(number)

    def clear(self) -> None:
        """Free everything."""
        while self._all:
            self._drop(next(iter(self._all)))

    def _drop(self, number: int) -> None:
        found = self._all.pop(number)
        self.bytes -= found.size
        self._close(found.held.context)
