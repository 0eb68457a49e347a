"""A drafter's rank that answers on a link of its own: its shard of what the leader drew (P29).

The group's commands and the link's messages come independently of each other, so two threads wait:
one follows the leader and puts this rank's shards on a mailbox, the other serves the link from it.
What lies there is handed to the connection of the verifier that it was drawn for, and to no other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from draftwire.drafter.connection import Connection
from draftwire.drafter.engine import DraftEngine
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.server import DrafterServer
from draftwire.engines.parallel.columns import ModelColumns
from draftwire.engines.parallel.drafter import RankedContext, follow_drafting
from draftwire.engines.parallel.mailbox import ShardMailbox
from draftwire.errors import ConfigurationError, TransportError
from draftwire.kernels.shards.shard import Collective
from draftwire.session.proposal import DraftTask
from draftwire.wire.registry import Adaptation


class FollowerEngine:
    """What a rank that does not lead says of its model in HELLO; the leader alone drives it."""

    adaptation = Adaptation.NATIVE

    def __init__(self, columns: ModelColumns) -> None:
        """Take the identities of a model's columns."""
        self.vocab_size = columns.vocab_size
        self.max_context = columns.max_context
        self.identity = columns.identity
        self.tokenizer_hash = columns.tokenizer_hash
        self.id_map_hash = columns.id_map_hash

    def open(self) -> RankedContext:
        """Refused, as is everything that would drive the model."""
        raise _leads()

    def close(self, context: RankedContext) -> None:
        """Refused."""
        raise _leads()

    def truncate(self, context: RankedContext, length: int) -> None:
        """Refused."""
        raise _leads()

    def forward(self, batch: object) -> NoReturn:
        """Refused."""
        raise _leads()


def _leads() -> ConfigurationError:
    return ConfigurationError("the leader alone drives a model over ranks")


def _leader_alone(engine: Any, jobs: Any, source: Any = None) -> Any:
    raise ConfigurationError("the leader alone draws; this rank answers with its shard")


class FollowerProgram(DrafterProgram[RankedContext]):
    """The program of such a rank: a task waits until its shard is in the mailbox."""

    def __init__(
        self,
        engine: DraftEngine[RankedContext],
        config: DrafterConfig,
        mailbox: ShardMailbox,
        *,
        key: bytes = b"",
    ) -> None:
        """Begin without connections. config, key: as for DrafterProgram, and as the leader's."""
        super().__init__(engine, config, proposer=_leader_alone, key=key)
        self.mailbox = mailbox

    @property
    def waiting(self) -> bool:
        """Whether a task can be answered now."""
        return any(self.mailbox.has(*each) for each in self._tasks())

    def disconnect(self, connection: Connection[RankedContext]) -> None:
        """The stream has ended: what it had of the mailbox is for the verifier's next one."""
        super().disconnect(connection)
        self.mailbox.leave(connection)

    def owes(self, connection: Connection[RankedContext]) -> bool:
        """Never: a task whose proposal the leader was not asked for must keep no place for ever."""
        return False

    def draw(self) -> list[Connection[RankedContext]]:
        """Answer what can be answered; returns the connections that were."""
        self._lapse(self._clock())
        answered = []
        for connection, task in self._tasks():
            draft = self.mailbox.take(connection, task)
            if draft is not None:
                self._scheduler.drop(connection, task.session)
                self._count(draft)
                connection.answer(task, draft)
                connection.answered(task.session)
                answered.append(connection)
        return answered

    def _tasks(self) -> list[tuple[Connection[RankedContext], DraftTask]]:
        return [(peer, task) for peer in self.connections for task in self._scheduler.of(peer)]


@contextmanager
def follower_thread(
    group: Collective,
    columns: ModelColumns,
    server: DrafterServer[RankedContext],
    mailbox: ShardMailbox,
) -> Iterator[None]:
    """Follow the leader in a thread for as long as the server of this rank's link runs.

    The server ends when the leader says stop, or is gone.
    """

    def follow() -> None:
        try:
            follow_drafting(group, columns, mailbox)
        except TransportError:
            pass  # the leader is gone, and this rank is of no use without it
        finally:
            server.stop()

    def wake() -> None:
        try:
            os.write(server.wake_descriptor(), b"\0")
        except BlockingIOError:
            return  # it has been woken and has not looked yet

    mailbox.on_change = wake
    thread = threading.Thread(target=follow, daemon=True, name="ranks")
    thread.start()
    yield
