"""What passes between the sessions and the programs around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from draftwire.kernels.rows import QRow
from draftwire.session.prefix import Prefix
from draftwire.session.reasons import DropReason
from draftwire.wire.messages import CommitRider, Message, ProposalPolicy
from draftwire.wire.registry import Outcome

Parts: TypeAlias = list[bytes | memoryview]
"""Bytes to be written, in order, for ``writev``; views in it stay as they are until then."""

NO_RIDER: Final = CommitRider(round=0, accepted=0, outcome=Outcome.NONE)
"""The commit rider of a STEP that opens a generation."""


def fits(outcome: Outcome, accepted: int, depth: int) -> bool:
    """Say whether a round with ``depth`` drafts (0: no proposal) can have ended like this.

    TARGET_ONLY fits any depth: a proposal may be lost on its way, or given up.
    """
    if outcome is Outcome.CORRECTION:
        return 0 <= accepted < depth
    if outcome is Outcome.BONUS:
        return 0 < depth == accepted
    if outcome is Outcome.ENDED:
        return 1 <= accepted <= depth
    return outcome is Outcome.TARGET_ONLY and accepted == 0


def require_fit(outcome: Outcome, accepted: int, depth: int, token: int | None) -> None:
    """Refuse a commit that cannot end a round whose whole proposal has ``depth`` drafts (0: none).

    TARGET_ONLY fits no whole proposal: it has to be given up first. Errors: ValueError.
    """
    unused = depth > 0 and outcome is Outcome.TARGET_ONLY
    if unused or not fits(outcome, accepted, depth):
        raise ValueError(f"{outcome.name} after {accepted} of {depth} drafts cannot be")
    if (token is None) is not (outcome is Outcome.ENDED):
        raise ValueError("ENDED comes without a token, every other outcome with one")


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it came: with the size and the CRC32C of its payload.

    Views inside the message are valid until the reader is called again.
    """

    message: Message
    payload_bytes: int
    checksum: int


@dataclass(slots=True)
class Draft:
    """A whole proposal: K tokens, and the K rows of counts that they were drawn from.

    admitted: how many of them are to be verified, fewer than K, each admitted before it was drawn
    (P35); 0 = all.
    """

    tokens: list[int] = field(default_factory=list)
    rows: list[QRow] = field(default_factory=list)
    admitted: int = 0


@dataclass(frozen=True, slots=True)
class Proposal:
    """K drafts with the K q's they were drawn from: whole, validated and audited.

    tokens[i] stands at ``first_position + i``; rows[i] is its q. Dense rows may lie in the slot of
    their round: read them until it is committed or dropped, and copy what is to stay. Afterwards
    they raise ReleasedError; an array taken out of one before does not, and holds another reply.
    """

    tokens: tuple[int, ...]
    rows: Sequence[QRow]
    generation: int
    round: int
    first_position: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The round's proposal is lost, all of it; the round is target-only.

    detail: says more, for a log. drafted: positions that were asked for.
    """

    reason: DropReason
    generation: int
    round: int
    drafted: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DraftTask:
    """One proposal that the drafter is to make.

    Truncate the model's state to ``cached_tokens``, which are as they were, feed ``new_tokens``,
    which end with the anchor, then draw ``policy.depth`` drafts from ``first_position`` on, each
    with the word at (generation, round, its position, PROPOSAL) of ``proposal_key``. The tasks of a
    session are begun in the order in which they were set; an unwanted one is better left out, and
    never begun after a later one: ``cached_tokens`` counts on that. commit: how the round before
    ended. prefix: the whole text; it grows beyond ``first_position`` only when the task is
    unwanted, and is another one in each generation. hidden: rows of states of the target
    as they came, of the committed tokens from ``states_from`` on (P37).
    """

    session: int
    slot: int
    generation: int
    round: int
    policy: ProposalPolicy
    proposal_key: int
    cached_tokens: int
    new_tokens: Sequence[int]
    first_position: int
    context_version: int
    states_from: int = 0
    hidden: bytes = b""
    commit: CommitRider = NO_RIDER
    prefix: Prefix = field(default_factory=Prefix, compare=False)
