"""The round that a verifier has in flight: its STEP, and the reply as far as it has come (P13)."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NoReturn

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.kernels.rows import Lease, RowBlock
from draftwire.kernels.shards.shard import Shard
from draftwire.kernels.words import proposal_words
from draftwire.rows.audit import first_audit_failure
from draftwire.rows.reply import decode_rows
from draftwire.session.proposal import Proposal, Received
from draftwire.wire.agreement import reply_bytes
from draftwire.wire.messages import Complete, Reply, Step
from draftwire.wire.registry import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CODE: Final = ProtocolErrorCode

_IDENTITY: Final = (
    ("session", _CODE.WRONG_SESSION),
    ("slot", _CODE.WRONG_SLOT),
    ("generation", _CODE.WRONG_GENERATION),
    ("round", _CODE.WRONG_ROUND),
    ("first_position", _CODE.WRONG_POSITION),
    ("prefix_digest", _CODE.WRONG_DIGEST),
    ("context_version", _CODE.BAD_FIELD),
)
"""Fields that REPLY and COMPLETE repeat from STEP, with the code of a difference."""

_identity: Final = attrgetter(*(name for name, _ in _IDENTITY))


@dataclass(slots=True)
class PendingRound:
    """One asked round. Methods raise ProtocolError at the first violation; nothing is repaired.

    asked_at, deadline: seconds of the caller's clock. vocab_size: V as agreed. admitted: drafts of
    the reply that are to be verified; 0 = all (P35).
    """

    step: Step
    vocab_size: int
    asked_at: float
    deadline: float
    tokens: tuple[int, ...] = ()
    admitted: int = 0
    rows: RowBlock | None = field(default=None, repr=False)
    payload_bytes: int = 0
    checksum: int = 0

    @property
    def shard(self) -> Shard:
        """What part of the vocabulary the reply has to hold: all of it."""
        return Shard(self.vocab_size, 0, self.vocab_size)

    def check_identity(self, message: Reply | Complete) -> None:
        """Refuse a message whose identity is not the STEP's, field by field."""
        found, asked = _identity(message), _identity(self.step)
        if found == asked:
            return
        for (name, code), theirs, ours in zip(_IDENTITY, found, asked, strict=True):
            if theirs != ours:
                _refuse(code, name, f"{name} is not the one that was asked")

    def check_same(self, received: Received) -> None:
        """Refuse a second REPLY that is not the first one once more."""
        if (received.payload_bytes, received.checksum) != (self.payload_bytes, self.checksum):
            _refuse(_CODE.DUPLICATE_ROUND, "round", "two different replies to one round")

    def hold(
        self,
        reply: Reply,
        received: Received,
        out: NDArray[np.int32] | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Take the q's of a REPLY out of the receive buffer (P12, P14); not yet a proposal.

        out: int32 (K, V) of the round's slot, where dense counts go, to be read there until the
        lease is over; None = memory of their own.
        """
        self.check_shape(reply, received.payload_bytes)
        self.rows = decode_rows(reply, self.vocab_size, out, lease)
        self.tokens, self.admitted = reply.rows.tokens, reply.admitted
        self.payload_bytes, self.checksum = received.payload_bytes, received.checksum

    def check_whole(self, complete: Complete) -> None:
        """Refuse a COMPLETE that speaks of another reply than the one that came."""
        if complete.reply_bytes != self.payload_bytes:
            _refuse(_CODE.WRONG_SIZE, "reply_bytes", "COMPLETE names another size")
        if complete.reply_checksum != self.checksum:
            _refuse(_CODE.BAD_PAYLOAD_CHECKSUM, "reply_checksum", "the reply fails its checksum")

    def audit(self) -> int:
        """Recompute every draw from the received counts and the key (A22); return how many.

        Zero in v1, which carries neither q nor key.
        """
        if self.step.policy.layout is Layout.IDS_ONLY:
            return 0
        assert self.rows is not None
        step, first = self.step, self.step.first_position
        uniform24 = proposal_words(
            step.proposal_key, step.generation, step.round, first, len(self.tokens)
        )
        wrong = first_audit_failure(self.rows, self.tokens, uniform24)
        if wrong is not None:
            where = first + wrong
            _refuse(_CODE.AUDIT_FAILED, "token", f"{where} was not drawn from the q sent")
        return len(self.tokens)

    def proposal(self) -> Proposal:
        """Return the proposal; call it when everything above holds."""
        step, rows = self.step, self.rows
        assert rows is not None
        admitted = self.admitted or len(self.tokens)
        kept = rows if admitted == len(rows) else rows[:admitted]
        tokens = self.tokens[:admitted]
        return Proposal(tokens, kept, step.generation, step.round, step.anchor + 1)

    def check_shape(self, reply: Reply, payload_bytes: int) -> None:
        """Refuse a REPLY of another layout, shard, depth or size than the STEP asks for."""
        policy = self.step.policy
        if reply.layout != policy.layout:
            _refuse(_CODE.BAD_FIELD, "layout", f"layout {reply.layout.name} was not asked")
        shard = self.shard
        held = (reply.shard_index, reply.shard_count, reply.shard_begin, reply.shard_end)
        if held != (shard.rank, shard.size, shard.begin, shard.end):
            _refuse(_CODE.WRONG_SHARD, "shard_index", f"it holds {held}, not {shard}")
        if len(reply.rows) != policy.depth:
            _refuse(_CODE.BAD_FIELD, "depth", f"{len(reply.rows)} positions, not {policy.depth}")
        width = shard.width if policy.layout is Layout.DENSE else policy.support
        if reply.support != width:
            _refuse(_CODE.WRONG_SIZE, "support", f"{reply.support} entries a row, not {width}")
        expected = reply_bytes(policy.layout, shard.width, policy.depth, policy.support)
        if payload_bytes != expected:
            _refuse(_CODE.WRONG_SIZE, "reply_bytes", f"{payload_bytes} bytes, not {expected}")


def _refuse(code: ProtocolErrorCode, field_name: str, message: str) -> NoReturn:
    raise ProtocolError(code, message, field=field_name)
