"""Whose proposal is drawn next: verifiers take turns, whatever each of them has asked for.

What is in a batch follows from what waits, never from anything that was drawn (law 4).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from draftwire.session.proposal import DraftTask

Owner = TypeVar("Owner")
Turn: TypeAlias = tuple[Owner, DraftTask]


def tokens_of(owner: object, task: DraftTask) -> int:
    """Return how many tokens a task feeds to a model that holds all of what is kept."""
    return len(task.new_tokens)


class BatchScheduler(Generic[Owner]):
    """Tasks that wait, at most one a session: owners in a circle, each one's oldest task first.

    A batch feeds about ``tokens`` tokens: each owner has an equal share of them for its tasks, and
    one task a batch may be larger than that; owners take turns at it. With n owners waiting and
    batches of b, an owner's next task within its share is in one of the next ceil(n / b) batches,
    and one beyond it in one of the next n, however many tasks the others have and however long.
    """

    def __init__(
        self, tokens: int = 1 << 62, cost: Callable[[Owner, DraftTask], int] = tokens_of
    ) -> None:
        """Begin with nothing. tokens: 1 or more; cost: the tokens that a task feeds."""
        self._circle: OrderedDict[Owner, dict[int, DraftTask]] = OrderedDict()
        self._waiting = 0
        self._tokens = tokens
        self._cost = cost

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

    def take(self, most: int) -> tuple[list[Turn[Owner]], Turn[Owner] | None]:
        """Return the next batch, at most ``most`` tasks, one an owner and turn; and one piece.

        The piece is a task that feeds more than ``tokens``, of which so many are fed in this batch:
        it waits on in its place, and ``put`` says what is left of it. None = there is none.
        """
        if self._waiting == 1:  # as below, in one step
            ((owner, tasks),) = self._circle.items()
            (task,) = tasks.values()
            if self._cost(owner, task) <= self._tokens:
                self._circle.clear()
                self._waiting = 0
                return [(owner, task)], None
        batch: list[Turn[Owner]] = []
        piece: Turn[Owner] | None = None
        share = max(self._tokens // max(min(len(self._circle), most), 1), 1)
        left = dict.fromkeys(self._circle, share)
        extra = True  # whether one task may still be larger than its owner's share
        lap = list(self._circle)
        while lap:
            following = []
            for owner in lap:
                if len(batch) + (piece is not None) >= most:
                    return self._taken(batch, piece)
                tasks = self._circle[owner]
                task = tasks[next(iter(tasks))]
                cost = self._cost(owner, task)
                if cost > left[owner]:
                    if not extra:
                        continue
                    extra, left[owner] = False, 0
                else:
                    left[owner] -= cost
                    following.append(owner)
                self._circle.move_to_end(owner)
                if cost > self._tokens:
                    piece = owner, task
                else:
                    batch.append((owner, tasks.pop(task.session)))
                    if not tasks:
                        del self._circle[owner]
            lap = [owner for owner in following if owner in self._circle]
        return self._taken(batch, piece)

    def clear(self) -> list[Turn[Owner]]:
        """Return everything that waits, and forget it."""
        everything = [
            (owner, task) for owner, tasks in self._circle.items() for task in tasks.values()
        ]
        self._circle.clear()
        self._waiting = 0
        return everything

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

    def _taken(
        self, batch: list[Turn[Owner]], piece: Turn[Owner] | None
    ) -> tuple[list[Turn[Owner]], Turn[Owner] | None]:
        self._waiting -= len(batch)
        return batch, piece
