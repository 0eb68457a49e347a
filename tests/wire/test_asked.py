"""A STEP's frame written in one go is the codec's frame, or left to the codec."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from draftwire.wire import codec
from draftwire.wire.asked import step_frame
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.messages import CommitRider, ProposalPolicy, Step
from draftwire.wire.registry import Layout, MessageType, Outcome, WireVersion

STEP = Step(
    session=1,
    slot=0,
    generation=1,
    round=3,
    anchor=4,
    policy=ProposalPolicy(Layout.SPARSE, 2, 0.5, support=2, top_k=7, top_p=8, min_p=9),
    commit=CommitRider(2, 1, Outcome.CORRECTION),
    context_version=6,
    proposal_key=5,
    prefix_digest=bytes(range(16)),
    base=3,
    tokens=(0, 7),
)
TOO_MUCH = (-1, 1 << 64, 1.5)


def slowly(version: WireVersion, step: Step) -> bytes:
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
        assert step_frame(version, step) == slowly(version, step)


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
    assert step_frame(WireVersion.V2, replace(STEP, **change)) is None  # type: ignore[arg-type]


def test_a_value_that_does_not_fit_is_left_to_the_codec_which_says_so() -> None:
    """Every number of a STEP, its policy and its rider, and a token."""
    steps = [replace(STEP, tokens=(0, value)) for value in (-(1 << 31) - 1, 1 << 31, 0.5)]
    for value in TOO_MUCH:
        for part, name in ((STEP, None), (STEP.policy, "policy"), (STEP.commit, "commit")):
            for field in fields(part):
                if type(getattr(part, field.name)) not in (int, float):
                    continue
                if field.name == "temperature":  # any number is one
                    continue
                changed = replace(part, **{field.name: value})  # type: ignore[type-var]
                steps.append(changed if name is None else replace(STEP, **{name: changed}))
    assert len(steps) > 50
    for step in steps:
        assert step_frame(WireVersion.V2, step) is None
        with pytest.raises(ValueError):
            slowly(WireVersion.V2, step)
