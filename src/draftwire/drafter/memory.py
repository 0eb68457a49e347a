"""The memory that answers hold: bounded over all verifiers, and reserved before anything is drawn.

A proposal is kept until its session asks for the next one, so that a retry gets the same bytes
(P16), and as long as it waits to be sent. Dense rows of a large vocabulary are megabytes each, and
connections times sessions of them more than a machine may have. So a STEP is declined (NO_SLOT)
where its answer would be too much: by sizes alone, which follow from policies (P12), never from
anything that was drawn (law 4).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from draftwire.drafter.config import DrafterConfig
from draftwire.errors import ConfigurationError
from draftwire.telemetry.events import log_event
from draftwire.wire.agreement import Agreed, largest_reply_bytes, reply_bytes
from draftwire.wire.fields import PAYLOAD_TABLES
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import HEADER_BYTES, TRAILER_BYTES, MessageType

_LOG: Final = logging.getLogger("draftwire.drafter")
_MIB: Final = 1 << 20
_FRAMING: Final = 2 * (HEADER_BYTES + TRAILER_BYTES) + PAYLOAD_TABLES[MessageType.COMPLETE].bytes
_SHARE: Final = 2  # answers may hold one part in so many of the memory there is
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")


class ReplyMemory:
    """Bytes of answers that are held or promised, and the most that may be."""

    def __init__(self, most: int) -> None:
        """Begin with nothing held. most: bytes."""
        self.most = most
        self.held = 0

    def take(self, size: int) -> bool:
        """Reserve so many bytes, if there are as many."""
        if self.held + size > self.most:
            return False
        self.held += size
        return True

    def lacks(self, size: int) -> int:
        """Return how many bytes must be given back before so many can be taken."""
        return self.held + size - self.most

    def give(self, size: int) -> None:
        """So many bytes are not held any more."""
        self.held -= size


class Answers:
    """What the answers of one connection hold of the memory.

    An answer is its session's until that asks again or ends. What of it waits to be sent then is
    held until it has left; ``end`` says where it ends in what was queued for this connection.
    """

    def __init__(self, memory: ReplyMemory) -> None:
        """Begin with none."""
        self._memory = memory
        self._of: dict[int, int] = {}
        self._leaving: deque[tuple[int, int]] = deque()  # end and bytes, in the order of sending

    def take(self, session: int, size: int) -> bool:
        """Reserve memory for the next answer of a session that has none; False = there is none."""
        if not self._memory.take(size):
            return False
        self._of[session] = size
        return True

    def over(self, session: int, end: int) -> None:
        """A session keeps its answer no more; nothing happens if it has none."""
        size = self._of.pop(session, 0)
        if size and end:
            self._leaving.append((end, size))
        else:
            self._memory.give(size)

    def of(self, session: int) -> int:
        """Return the bytes of the answer that a session keeps or waits for."""
        return self._of.get(session, 0)

    def sent(self, until: int) -> None:
        """Everything that was queued up to here has left."""
        leaving = self._leaving
        if leaving and min(leaving)[0] <= until:
            self._memory.give(sum(size for end, size in leaving if end <= until))
            self._leaving = deque(each for each in leaving if each[0] > until)

    def close(self) -> None:
        """The connection is over, and what it queued is forgotten; may be called twice."""
        self._memory.give(sum(self._of.values()) + sum(size for _, size in self._leaving))
        self._of.clear()
        self._leaving.clear()


def answer_bytes(policy: ProposalPolicy, agreed: Agreed) -> int:
    """Return the bytes of a whole answer under a policy: REPLY and COMPLETE, framed."""
    width = shard_width(agreed.vocab_size, agreed.shard_count)
    return reply_bytes(policy.layout, width, policy.depth, policy.support) + _FRAMING


def require_room(vocab_size: int, config: DrafterConfig, most: int) -> int:
    """Return the bytes of the largest answer; ConfigurationError if the memory holds none."""
    width = shard_width(vocab_size, config.shard_count)
    reply = largest_reply_bytes(config.layouts, width, config.max_depth, config.max_support)
    if reply + _FRAMING > most:
        raise ConfigurationError(
            f"an answer may take {reply + _FRAMING:,} bytes, and all of them together no more than"
            f" {most:,}: raise max_reply_memory, lower max_depth, or leave out the dense layout"
        )
    return reply + _FRAMING


def memory_at_most(config: DrafterConfig, answer: int, most: int) -> None:
    """Tell the operator what memory answers may come to hold, and what to do if that is too much.

    answer: bytes of the largest.
    """
    wanted = config.max_connections * config.max_sessions * answer
    fields = {"wanted": wanted, "most": most, "answer": answer}
    text = (
        f"answers hold at most {min(wanted, most) / _MIB:,.0f} MiB: {config.max_connections}"
        f" verifiers x {config.max_sessions} sessions x {answer / _MIB:,.2f} MiB"
    )
    if wanted <= most:
        log_event(_LOG, logging.INFO, "reply_memory", text, **fields)
        return
    text += (
        f" would be {wanted / _MIB:,.0f} MiB; what is over the limit is declined with no_slot."
        " Lower --max-connections, --max-sessions or --max-depth, offer --layouts sparse, or raise"
        " --max-reply-mib"
    )
    log_event(_LOG, logging.WARNING, "reply_memory", text, **fields)


def shard_width(vocab_size: int, shards: int) -> int:
    """Return how many ids the widest of so many shards has (P29)."""
    return -(-vocab_size // shards)


def usual_memory() -> int:
    """Return the bytes that answers may hold unless configured otherwise: half of what is there.

    That of the machine, or of the container where it has a limit.
    """
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or "max"
        there = min(there, int(_CGROUP.read_text()))
    return there // _SHARE
