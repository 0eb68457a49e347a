"""P13: whether a REPLY or COMPLETE answers the STEP in flight. Nothing is repaired."""

from __future__ import annotations

from typing import Final, NoReturn

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.exact.words import Address, Domain, ProposalWords
from draftwire.kernels import cpu
from draftwire.kernels.rows import QRow
from draftwire.wire.agreement import reply_bytes
from draftwire.wire.messages import Complete, Reply, Step
from draftwire.wire.registry import Layout

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


def check_identity(step: Step, message: Reply | Complete) -> None:
    """Raise ProtocolError with the code of the first identity field that is not the STEP's."""
    for field, code in _IDENTITY:
        if getattr(message, field) != getattr(step, field):
            _refuse(code, field, f"{field} is not the one that was asked")


def check_shape(step: Step, reply: Reply, payload_bytes: int, vocab_size: int) -> None:
    """Raise ProtocolError unless the reply has the shape and size that were asked (P12)."""
    policy = step.policy
    if reply.layout != policy.layout:
        _refuse(_CODE.BAD_FIELD, "layout", f"layout {reply.layout.name} was not asked")
    shard = (reply.shard_index, reply.shard_count, reply.shard_begin, reply.shard_end)
    if shard != (0, 1, 0, vocab_size):
        _refuse(_CODE.WRONG_SHARD, "shard_index", "the reply does not hold the whole vocabulary")
    if len(reply.rows) != policy.depth:
        _refuse(_CODE.BAD_FIELD, "depth", f"{len(reply.rows)} positions, {policy.depth} were asked")
    width = vocab_size if policy.layout is Layout.DENSE else policy.support
    if reply.support != width:
        _refuse(_CODE.WRONG_SIZE, "support", f"{reply.support} entries a row, {width} were asked")
    expected = reply_bytes(policy.layout, vocab_size, policy.depth, policy.support)
    if payload_bytes != expected:
        _refuse(_CODE.WRONG_SIZE, "reply_bytes", f"{payload_bytes} bytes, {expected} were asked")


def check_complete(step: Step, complete: Complete, payload_bytes: int, checksum: int) -> None:
    """Raise ProtocolError unless COMPLETE speaks of the reply of that size and checksum."""
    if complete.reply_bytes != payload_bytes:
        _refuse(_CODE.WRONG_SIZE, "reply_bytes", "COMPLETE names another size than its reply has")
    if complete.reply_checksum != checksum:
        _refuse(_CODE.BAD_PAYLOAD_CHECKSUM, "reply_checksum", "the reply fails its checksum")


def audit_rows(step: Step, tokens: tuple[int, ...], rows: tuple[QRow, ...]) -> None:
    """Recompute every draw from the received counts and the key (A22); AUDIT_FAILED otherwise."""
    words = ProposalWords(step.proposal_key)
    for index, (token, row) in enumerate(zip(tokens, rows, strict=True)):
        position = step.first_position + index
        address = Address(step.generation, step.round, position, Domain.PROPOSAL)
        if not cpu.audit(row, token, next(words.words(address))):
            _refuse(
                _CODE.AUDIT_FAILED, "token", f"position {position} was not drawn from the q sent"
            )


def _refuse(code: ProtocolErrorCode, field: str, message: str) -> NoReturn:
    raise ProtocolError(code, message, field=field)
