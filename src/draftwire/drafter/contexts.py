"""What a drafting model holds of a session's prefix: all of it, or a window of its last tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.early_stop import StopRule
from draftwire.drafter.engine import Context
from draftwire.drafter.mirror import Mirror
from draftwire.session.prefix import common_tokens
from draftwire.session.proposal import DraftTask

LONGEST_PREFIX: Final = 1 << 18
"""Tokens of a prefix that is drafted for unless configured otherwise, however few a model reads."""


@dataclass(frozen=True, slots=True)
class Window:
    """Where the model begins to read a committed prefix.

    size: the most tokens of a prefix that it reads at once; 0 = all of any. Where the prefix is
    longer, the window moves on by half of its size at a time, so that a token more seldom means
    that what is left is read again; over a text the model reads each token about twice.
    """

    size: int = 0

    @classmethod
    def of(cls, max_context: int, config: DrafterConfig) -> Window:
        """Return the window of a model that reads ``max_context`` tokens, drafts included."""
        longest = longest_prefix(max_context, config)
        return cls(0 if longest <= max_context else max(max_context - config.max_depth, 1))

    def start(self, length: int) -> int:
        """Return the first position that is read of a prefix of ``length`` tokens.

        A function of the length alone, so that q is one of the prefix and the policy (law 2).
        """
        if not self.size or length <= self.size:
            return 0
        stride = max(self.size // 2, 1)
        return -(-(length - self.size) // stride) * stride


def longest_prefix(max_context: int, config: DrafterConfig) -> int:
    """Return the most tokens of a prefix and its proposal, for a model that reads max_context."""
    return config.max_context or max(max_context, LONGEST_PREFIX)


@dataclass(slots=True)
class HeldContext(Generic[Context]):
    """A context of the model. start: the position in the session's prefix of its first token.

    tokens: that it has read, drafts among them. shared: of a session that is over, how many of them
    the prefix of this one begins with, until it is cut to them; 0 = it was made for this session.
    unproved: it was another session's, and nothing has been drawn from it for this one. stop:
    decides how many drafts of a proposal are admitted; None = all. mirror: the processors of the
    session's latest policy; None = it had none.
    """

    context: Context
    start: int = 0
    tokens: array[int] = field(default_factory=lambda: array("i"))
    shared: int = 0
    unproved: bool = False
    stop: StopRule | None = None
    mirror: Mirror | None = None

    @property
    def end(self) -> int:
        """One past the last position whose state it holds."""
        return self.start + self.context.length

    def share(self, prefix: Sequence[int]) -> None:
        """Find how much of it, uncut, serves a prefix that has yet to be read; the last is not."""
        self.shared = common_tokens(self.tokens, array("i", prefix[:-1]))

    def keeps(self, start: int, cached: int) -> int:
        """Return how many of its first tokens serve a prefix.

        start: the first position to be read. cached: the prefix begins as the one that was held
        did, for so many tokens.
        """
        kept = min(self.end, max(cached, self.shared))
        return max(kept - start, 0) if self.start == start else 0

    def mirror_of(self, task: DraftTask, vocab_size: int) -> Mirror | None:
        """Return the processors of a task at its place in the text, or None where it has none."""
        encoded, mirror = task.policy.processors, self.mirror
        if not encoded:
            mirror = None
        elif mirror is None or mirror.prefix is not task.prefix or mirror.encoded != encoded:
            mirror = Mirror(encoded, task.prefix, vocab_size)
        if mirror is not None:
            mirror.follow(task.first_position)
        self.mirror = mirror
        return mirror
