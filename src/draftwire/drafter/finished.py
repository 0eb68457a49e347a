"""Contexts of sessions that are over, for a later one whose prefix begins as theirs did (M13).

A turn of a chat repeats the turns before it: a new session goes on from the context that shares the
longest prefix with it, and reads what is new. Each owner has its own table, and no other is looked
at: nobody can tell by the time that a prompt takes whether somebody else has sent one that begins
alike. What is kept is bounded in bytes; the owner of most loses what it has not used for longest.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Table(Generic[Context]):
    """One owner's contexts with their sizes, the longest unused first. bytes: of them all."""

    contexts: OrderedDict[int, tuple[HeldContext[Context], int]] = field(
        default_factory=OrderedDict
    )
    bytes: int = 0


class FinishedContexts(Generic[Context]):
    """Contexts by owner. A context is here or with one session."""

    def __init__(self, most: int, close: Callable[[Context], None]) -> None:
        """Begin with none. most: bytes over all owners; close: frees a context, never raises."""
        self.counters = FinishedCounters()
        self.bytes = 0
        self._most = most
        self._close = close
        self._tables: dict[Hashable, _Table[Context]] = {}
        self._count = 0
        self._next = 0

    def __len__(self) -> int:
        """Contexts that are kept; any thread may ask."""
        return self._count

    def put(self, owner: Hashable, held: HeldContext[Context], size: int) -> None:
        """Keep the context of a session that is over; size: bytes, its tokens not among them."""
        size += held.tokens.itemsize * len(held.tokens)
        if size > self._most or held.start or len(held.tokens) < LEAST_SHARED:
            self._close(held.context)
            return
        held.mirror = None  # of a text that is over
        self._next += 1
        table = self._tables.setdefault(owner, _Table())
        table.contexts[self._next] = held, size
        table.bytes += size
        self.bytes += size
        self._count += 1
        self.counters.kept += 1
        while self.bytes > self._most:
            # Who keeps no more than an equal share of the memory never loses it to others.
            most = max(self._tables, key=lambda each: self._tables[each].bytes)
            self._drop(most, next(iter(self._tables[most].contexts)))
            self.counters.evicted += 1

    def take(self, owner: Hashable, prefix: array[int]) -> tuple[HeldContext[Context], int] | None:
        """Return the owner's context that shares most with a prefix, and how many tokens; or None.

        It is no longer kept then.
        """
        best, shared = 0, LEAST_SHARED - 1
        table = self._tables.get(owner)
        for number, (held, _) in table.contexts.items() if table is not None else ():
            common = common_tokens(held.tokens, prefix)
            if common > shared:
                best, shared = number, common
        if not best:
            return None
        self.counters.reused += 1
        self.counters.tokens += shared
        return self._remove(owner, best), shared

    def forget(self, owner: Hashable) -> None:
        """Free all of an owner's, who will not come again."""
        while owner in self._tables:
            self._drop(owner, next(iter(self._tables[owner].contexts)))

    def clear(self) -> None:
        """Free everything."""
        while self._tables:
            self.forget(next(iter(self._tables)))

    def evict_all(self) -> bool:
        """Free everything, since memory may be short; returns whether there was anything."""
        evicted = self._count
        self.counters.evicted += evicted
        self.clear()
        return evicted > 0

    def _drop(self, owner: Hashable, number: int) -> None:
        self._close(self._remove(owner, number).context)

    def _remove(self, owner: Hashable, number: int) -> HeldContext[Context]:
        table = self._tables[owner]
        held, size = table.contexts.pop(number)
        table.bytes -= size
        self.bytes -= size
        self._count -= 1
        if not table.contexts:
            del self._tables[owner]
        return held
