"""A STEP read or written in one go is the codec's, or left to the codec."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from draftwire.errors import ProtocolError
from draftwire.wire import codec
from draftwire.wire.agreement import Agreed
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.messages import CommitRider, Message, ProposalPolicy, Step
from draftwire.wire.registry import Layout, MessageType, Outcome, WireVersion
from draftwire.wire.steps import POLICIES_KEPT, read_step, remember, step_frame
from testing.harness.messages import AGREED, payload_of

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


USUAL = replace(
    STEP,
    policy=ProposalPolicy(Layout.SPARSE, 2, 0.5, support=2, top_k=7, top_p=8, min_p=9),
    context_version=6,
    prefix_digest=bytes(range(16)),
)
TOO_MUCH = (-1, 1 << 64, 1.5)


def encoded(version: WireVersion, step: Step) -> bytes:
    """Encode field by field."""
    return frame_bytes(encode_frame(version, MessageType.STEP, *codec.encode(step)))


def random_steps(count: int) -> Iterator[Step]:
    source = random.Random(5)
    for _ in range(count):
        base, tokens = source.randrange(1 << 20), source.randrange(70)
        yield Step(
            session=source.randrange(1 << 64),
            slot=source.randrange(1 << 16),
            generation=source.randrange(1 << 32),
            round=source.randrange(1 << 32),
            anchor=base + tokens,
            policy=ProposalPolicy(
                source.choice(list(Layout)),
                source.randrange(1 << 16),
                source.choice([0.0, -0.0, 1.0, 0.7]),
                *(source.randrange(1 << 32) for _ in range(4)),
            ),
            commit=CommitRider(
                source.randrange(1 << 32),
                source.randrange(1 << 16),
                source.choice(list(Outcome)),
            ),
            context_version=source.randrange(1 << 32),
            proposal_key=source.randrange(1 << 64),
            prefix_digest=source.randbytes(16),
            base=base,
            tokens=tuple(source.randrange(-(1 << 31), 1 << 31) for _ in range(tokens)),
        )


@pytest.mark.parametrize("version", WireVersion)
def test_any_step_is_written_as_the_codec_writes_it(version: WireVersion) -> None:
    for step in random_steps(2000):
        assert step_frame(version, step) == encoded(version, step)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_rows": 1, "hidden": b"1234"},
        {"hidden": b"1234"},
        {"hidden_rows": 1},
        {"hidden": memoryview(b"12")},
        {"prefix_digest": bytearray(16)},
        {"prefix_digest": bytes(15)},
        {"prefix_digest": bytes(17)},
    ],
)
def test_an_unusual_step_is_left_to_the_codec(change: dict[str, object]) -> None:
    assert step_frame(WireVersion.V2, replace(USUAL, **change)) is None  # type: ignore[arg-type]


def test_a_value_that_does_not_fit_is_left_to_the_codec_which_says_so() -> None:
    """Every number of a STEP, its policy and its rider, and a token."""
    steps = [replace(USUAL, tokens=(0, value)) for value in (-(1 << 31) - 1, 1 << 31, 0.5)]
    for value in TOO_MUCH:
        for part, name in ((USUAL, None), (USUAL.policy, "policy"), (USUAL.commit, "commit")):
            for field in fields(part):
                if type(getattr(part, field.name)) not in (int, float):
                    continue
                if field.name == "temperature":  # any number is one
                    continue
                changed = replace(part, **{field.name: value})  # type: ignore[type-var]
                steps.append(changed if name is None else replace(USUAL, **{name: changed}))
    assert len(steps) > 50
    for step in steps:
        assert step_frame(WireVersion.V2, step) is None
        with pytest.raises(ValueError):
            encoded(WireVersion.V2, step)
