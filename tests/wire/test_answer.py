"""Bytes of an answer that follow from its STEP, against the codec's, field by field."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftwire.wire.agreement import q_bytes, reply_bytes
from draftwire.wire.answer import (
    CHECKSUM_BYTES,
    COMPLETE_BYTES,
    HEAD_BYTES,
    Part,
    complete,
    laid_out,
    outline,
    reply_head,
)
from draftwire.wire.codec import encode
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.messages import CommitRider, Complete, ProposalPolicy, Reply, ReplyRow, Step
from draftwire.wire.registry import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Layout,
    MessageType,
    Outcome,
    Status,
    WireVersion,
)

STEP = Step(
    session=(1 << 63) + 5,
    slot=3,
    generation=7,
    round=(1 << 32) - 1,
    anchor=41,
    policy=ProposalPolicy(Layout.SPARSE, 5, 0.7, support=32),
    commit=CommitRider(6, 2, Outcome.CORRECTION),
    context_version=9,
    proposal_key=(1 << 64) - 1,
    prefix_digest=bytes(range(16)),
    base=40,
    tokens=(1, 2),
)
POLICIES = [
    ProposalPolicy(Layout.SPARSE, 5, 0.7, support=32),
    ProposalPolicy(Layout.DENSE, 3, 1.0),
    ProposalPolicy(Layout.IDS_ONLY, 2, 0.0),
]
PARTS = [Part(0, 1, 0, 1000), Part(1, 3, 300, 650)]


def reply(step: Step, part: Part) -> Reply:
    policy = step.policy
    size = q_bytes(policy.layout, part.end - part.begin if policy.layout is Layout.DENSE else 32)
    return Reply(
        session=step.session,
        slot=step.slot,
        layout=policy.layout,
        generation=step.generation,
        round=step.round,
        first_position=step.first_position,
        prefix_digest=step.prefix_digest,
        context_version=step.context_version,
        shard_index=part.rank,
        shard_count=part.size,
        shard_begin=part.begin,
        shard_end=part.end,
        support=part.end - part.begin if policy.layout is Layout.DENSE else policy.support,
        rows=[ReplyRow(step.first_position, 0, 0, 0, bytes(size))] * policy.depth,
    )


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_reply_begins_with_its_fixed_fields(policy: ProposalPolicy, part: Part):
    step = replace(STEP, policy=policy)
    head = reply_head(step, part)
    whole = b"".join(bytes(piece) for piece in encode(reply(step, part)))
    assert head == whole[: HEAD_BYTES[MessageType.REPLY]]


@pytest.mark.parametrize("status", list(Status))
def test_complete_is_the_codecs(status: Status):
    size, checksum = (1516, 0xFEDCBA98) if status is Status.OK else (0, 0)
    message = Complete(
        session=STEP.session,
        slot=STEP.slot,
        status=status,
        generation=STEP.generation,
        round=STEP.round,
        first_position=STEP.first_position,
        prefix_digest=STEP.prefix_digest,
        context_version=STEP.context_version,
        reply_bytes=size,
        reply_checksum=checksum,
    )
    assert [complete(STEP, status, size, checksum)] == encode(message)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_outline_is_both_messages_up_to_what_is_drawn(policy: ProposalPolicy):
    step, part = replace(STEP, policy=policy), PARTS[0]
    frames = outline(step, part)
    size = reply_bytes(policy.layout, 1000, policy.depth, policy.support)
    last = complete(step, Status.OK, size, 0)
    assert frames.reply[HEADER_BYTES:] == reply_head(step, part)
    assert frames.complete[HEADER_BYTES:] == last[:-CHECKSUM_BYTES]
    assert (frames.payload_bytes, COMPLETE_BYTES) == (size, len(last))


@pytest.mark.parametrize("tokens", [(0, 1, 2, 3, 999), (1 << 31, 0, 0, 0, 0), (0,) * 4, (0,) * 6])
def test_an_answer_is_laid_out_as_it_is_outlined(tokens: tuple[int, ...]):
    frames = laid_out(STEP, 1000, tokens)
    if max(tokens) >> 31 or len(tokens) != STEP.policy.depth:
        assert frames is None
        return
    known = outline(STEP, PARTS[0])
    assert frames is not None
    assert len(frames) == known.bytes
    rows, last = len(known.reply), HEADER_BYTES + known.payload_bytes + TRAILER_BYTES
    assert frames[:rows] == known.reply
    assert frames[last : last + len(known.complete)] == known.complete
    width = 16 + 8 * STEP.policy.support
    for row, token in enumerate(tokens):
        head = token.to_bytes(4, "little", signed=True)
        at = rows + row * width
        assert frames[at : at + width] == bytes(4) + head + bytes(width - 8)


def test_every_field_of_identity_changes_the_head():
    """Nothing of what P13 compares is left out of the comparison of bytes."""
    heads = {reply_head(STEP, PARTS[0])}
    for field, value in {
        "session": 8,
        "slot": 4,
        "generation": 8,
        "round": 3,
        "anchor": 40,
        "context_version": 8,
        "prefix_digest": bytes(16),
    }.items():
        heads.add(reply_head(replace(STEP, **{field: value}), PARTS[0]))
    assert len(heads) == 8


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("part", PARTS)
def test_an_outline_is_both_frames_up_to_what_is_drawn(policy: ProposalPolicy, part: Part) -> None:
    step = replace(STEP, policy=policy)
    frames = outline(step, part)
    payload = b"".join(bytes(each) for each in encode(reply(step, part)))
    first = frame_bytes(encode_frame(WireVersion.V2, MessageType.REPLY, payload))
    end = complete(step, Status.OK, len(payload), 7)
    last = frame_bytes(encode_frame(WireVersion.V2, MessageType.COMPLETE, end))
    assert first.startswith(frames.reply)
    assert last.startswith(frames.complete)
    assert len(frames.reply) == HEADER_BYTES + HEAD_BYTES[MessageType.REPLY]
    assert len(frames.complete) == HEADER_BYTES + HEAD_BYTES[MessageType.COMPLETE]
    assert frames.payload_bytes == len(payload)
    assert frames.bytes == len(first + last)
