"""Whose proposal is drawn next: verifiers take turns, whatever each of them has asked for.

What is in a batch follows from what waits, never from anything that was drawn (law 4).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from draftwire.session.proposal import DraftTask

Owner = TypeVar("Owner")


class Turns(Generic[Owner]):
    """Tasks that wait, at most one a session: owners in a circle, each one's oldest task first.

    With n owners waiting and batches of b, an owner's next task is in one of the next ceil(n / b)
    batches, however many tasks the others have.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._circle: OrderedDict[Owner, dict[int, DraftTask]] = OrderedDict()
        self._waiting = 0

    def __len__(self) -> int:
        """Tasks that wait; any thread may ask."""
        return self._waiting

    def __contains__(self, owner: Owner) -> bool:
        """Whether a task of this owner waits."""
        return owner in self._circle

    def of(self, owner: Owner) -> list[DraftTask]:
        """Return an owner's waiting tasks, oldest first."""
        return list(self._circle.get(owner, {}).values())

    def put(self, owner: Owner, task: DraftTask) -> int:
        """Let a task wait, in the place of an older one of its session.

        Returns how many tasks it has taken the place of.
        """
        tasks = self._circle.setdefault(owner, {})
        replaced = task.session in tasks
        tasks[task.session] = task
        self._waiting += not replaced
        return int(replaced)

    def take(self, most: int) -> list[tuple[Owner, DraftTask]]:
        """Return the next batch, at most ``most`` tasks, one an owner and turn."""
        batch: list[tuple[Owner, DraftTask]] = []
        while self._circle and len(batch) < most:
            owner, tasks = self._circle.popitem(last=False)
            batch.append((owner, tasks.pop(next(iter(tasks)))))
            if tasks:
                self._circle[owner] = tasks
        self._waiting -= len(batch)
        return batch

    def drop(self, owner: Owner, session: int | None = None) -> int:
        """Forget a session's task, or all of an owner's; returns how many there were."""
        tasks = self._circle.get(owner, {})
        gone = [each for each in tasks if session in (None, each)]
        for each in gone:
            del tasks[each]
        if not tasks:
            self._circle.pop(owner, None)
        self._waiting -= len(gone)
        return len(gone)
