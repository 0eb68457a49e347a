"""A STEP read in one go is the codec's STEP, or left to the codec: over every byte of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftwire.errors import ProtocolError
from draftwire.wire import codec
from draftwire.wire.agreement import Agreed
from draftwire.wire.messages import CommitRider, Message, ProposalPolicy, Step
from draftwire.wire.registry import Layout, MessageType, Outcome, WireVersion
from draftwire.wire.steps import POLICIES_KEPT, read_step, remember
from tests.wire.examples import AGREED, payload_of

STEP = Step(
    session=1,
    slot=0,
    generation=1,
    round=3,
    anchor=4,
    policy=ProposalPolicy(Layout.SPARSE, 2, 0.0, support=2),
    commit=CommitRider(2, 1, Outcome.CORRECTION),
    context_version=0,
    proposal_key=5,
    prefix_digest=bytes(16),
    base=3,
    tokens=(0, 7),
)


def slowly(payload: bytes, agreed: Agreed) -> Message | ProtocolError:
    """Decode with nothing remembered: field by field."""
    fresh = replace(agreed)
    try:
        return codec.decode(MessageType.STEP, WireVersion.V2, memoryview(payload), fresh)
    except ProtocolError as error:
        return error


def test_every_changed_byte_reads_as_the_codec_reads_it():
    agreed = replace(AGREED)
    payload = bytes(payload_of(STEP))
    remember(memoryview(payload), STEP.policy, agreed)
    assert read_step(memoryview(payload), agreed) == STEP
    read = 0
    for at in range(len(payload)):
        for value in range(256):
            changed = payload[:at] + bytes([value]) + payload[at + 1 :]
            quick = read_step(memoryview(changed), agreed)
            if quick is not None:
                read += 1
                assert quick == slowly(changed, agreed), (at, value)
    assert read > 1000  # sessions, keys, digests and tokens may be anything


@pytest.mark.parametrize("cut", [-1, 1, 4])
def test_another_length_is_left_to_the_codec(cut: int):
    agreed = replace(AGREED)
    payload = bytes(payload_of(STEP))
    remember(memoryview(payload), STEP.policy, agreed)
    changed = payload[:cut] if cut < 0 else payload + bytes(cut)
    assert read_step(memoryview(changed), agreed) is None


def test_minus_zero_is_another_temperature():
    """0.0 and -0.0 are equal numbers, and only one of them may be sent (P5)."""
    agreed = replace(AGREED)
    payload = bytes(payload_of(STEP))
    remember(memoryview(payload), STEP.policy, agreed)
    minus = payload_of(replace(STEP, policy=replace(STEP.policy, temperature=-0.0)))
    assert read_step(memoryview(minus), agreed) is None
    with pytest.raises(ProtocolError):
        codec.decode(MessageType.STEP, WireVersion.V2, memoryview(minus), agreed)


def test_only_so_many_policies_are_kept():
    agreed = replace(AGREED)
    for tickets in range(1, 3 * POLICIES_KEPT):
        step = replace(STEP, policy=replace(STEP.policy, top_p=tickets))
        codec.decode(MessageType.STEP, WireVersion.V2, memoryview(payload_of(step)), agreed)
        assert len(agreed.policies) <= POLICIES_KEPT
    assert agreed.policies
