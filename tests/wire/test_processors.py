"""P33 and P34: features are agreed, and processors decode canonically or not at all (case M15)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.agreement import agree, answer
from draftwire.wire.codec import decode, encode
from draftwire.wire.hello import hello_of
from draftwire.wire.messages import Hello, Step
from draftwire.wire.processors import (
    Processor,
    Repetition,
    Suppress,
    decode_processors,
    encode_processors,
    well_formed,
)
from draftwire.wire.registry import (
    MAX_PROCESSOR_BYTES,
    MAX_PROCESSORS,
    Adaptation,
    Feature,
    LayoutSet,
    MessageType,
    Role,
    WireVersion,
)
from spec.oracle.frames import Refused
from spec.oracle.processors import read_processors
from testing.harness.messages import (
    AGREED,
    AGREED_MIRRORED,
    AGREED_V1,
    DRAFTER,
    MIRRORED_STEP,
    VERIFIER,
    WIDE,
    payload_of,
    processors,
)
from testing.toys.models import ToyTarget, constant

CODE = ProtocolErrorCode
V2 = WireVersion.V2
EVERY = MIRRORED_STEP.policy.processors
SIZE = AGREED.vocab_size


def oracle_reads(data: bytes) -> bool:
    try:
        read_processors(data, SIZE)
    except Refused as refusal:
        assert (refusal.code, refusal.field) == ("BAD_FIELD", "processor_bytes")
        return False
    return True


def read(payload: bytes, agreed=AGREED_MIRRORED) -> Step:
    message = decode(MessageType.STEP, agreed.version, memoryview(payload), agreed)
    assert isinstance(message, Step)
    return message


def test_a_step_with_a_processor_of_each_kind_comes_back() -> None:
    assert read(payload_of(MIRRORED_STEP)) == MIRRORED_STEP
    again = decode_processors(EVERY, SIZE)
    assert len(again) == 7
    assert encode_processors(again) == EVERY


@settings(max_examples=200, deadline=None)
@given(st.lists(processors, max_size=MAX_PROCESSORS))
def test_processors_come_back_and_the_oracle_reads_them(some: list[Processor]) -> None:
    data = encode_processors(some)
    assert list(decode_processors(data, SIZE)) == some
    assert oracle_reads(data)


def test_every_flipped_bit_is_other_processors_or_one_refusal() -> None:
    """Both readers agree on every one of them, and what decodes encodes to the same bytes."""
    read_ = 0
    for at in range(8 * len(EVERY)):
        flipped = bytearray(EVERY)
        flipped[at // 8] ^= 1 << at % 8
        data = bytes(flipped)
        fine = well_formed(data, SIZE)
        assert fine is oracle_reads(data)
        read_ += fine
        if fine:
            assert encode_processors(decode_processors(data, SIZE)) == data
            continue
        payload = payload_of(MIRRORED_STEP)[: -len(EVERY)] + data
        with pytest.raises(ProtocolError) as caught:
            read(payload)
        assert (caught.value.code, caught.value.field) == (CODE.BAD_FIELD, "processor_bytes")
    assert 0 < read_ < 8 * len(EVERY)


def test_every_cut_is_refused() -> None:
    for size in range(len(EVERY)):
        assert well_formed(EVERY[:size], SIZE) is oracle_reads(EVERY[:size])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_processors_to_both_readers_or_to_neither(data: bytes) -> None:
    assert well_formed(data, SIZE) is oracle_reads(data)


def test_bytes_and_number_of_processors_are_bounded() -> None:
    one = encode_processors([Repetition(0, 1.5)])
    assert well_formed(one * MAX_PROCESSORS, SIZE)
    assert not well_formed(one * (MAX_PROCESSORS + 1), SIZE)
    wide = encode_processors([Suppress(0, 1, tuple(range(4096)))])
    assert len(wide) > MAX_PROCESSOR_BYTES
    with pytest.raises(ProtocolError, match="over 16384"):
        decode_processors(wide, 1 << 20)


def test_a_number_outside_its_type_is_our_own_bug() -> None:
    for wrong in (Repetition(-1, 1.5), Repetition(1 << 32, 1.5), Suppress(0, 1, (1 << 31,))):
        with pytest.raises(ValueError, match="outside its type"):
            encode_processors([wrong])


def test_processor_bytes_are_reserved_where_mirror_is_not_agreed() -> None:
    payload = payload_of(MIRRORED_STEP)
    for agreed in (AGREED, AGREED_V1, None):
        version = V2 if agreed is None else agreed.version
        with pytest.raises(ProtocolError) as caught:
            decode(MessageType.STEP, version, memoryview(payload), agreed)
        assert (caught.value.code, caught.value.field) == (CODE.BAD_PADDING, "processor_bytes")


def test_a_hello_of_v1_has_no_features() -> None:
    greedy = replace(VERIFIER, layouts=LayoutSet.IDS_ONLY, features=Feature.MIRROR)
    with pytest.raises(ProtocolError) as caught:
        decode(MessageType.HELLO, WireVersion.V1, memoryview(payload_of(greedy)), None)
    assert (caught.value.code, caught.value.field) == (CODE.BAD_PADDING, "features")


@pytest.mark.parametrize("offered", [0, 1, 0x80, 0x81, 0xFF])
@pytest.mark.parametrize("known", [0, 1])
def test_the_features_of_both_are_agreed_and_unknown_ones_ignored(offered: int, known: int) -> None:
    verifier = replace(VERIFIER, **{**WIDE, "features": Feature(offered)})
    drafter = replace(DRAFTER, **{**WIDE, "features": Feature(known)})
    payload = b"".join(encode(verifier))
    heard = decode(MessageType.HELLO, V2, memoryview(payload), None)
    assert isinstance(heard, Hello)
    agreed = agree(drafter, heard)
    assert agreed.features == offered & known
    assert agreed.mirrors is bool(offered & known & 1)
    assert agree(verifier, answer(drafter, agreed)) == agreed


def test_a_drafter_that_agrees_to_what_was_not_offered_is_refused() -> None:
    theirs = replace(DRAFTER, **WIDE)
    with pytest.raises(ProtocolError) as caught:
        agree(replace(VERIFIER, max_step_bytes=WIDE["max_step_bytes"]), theirs)
    assert (caught.value.code, caught.value.field) == (CODE.HELLO_REFUSED, "features")


def test_steps_have_room_for_processors_where_they_are_agreed() -> None:
    tight = {"features": Feature.MIRROR}
    with pytest.raises(ProtocolError) as caught:
        agree(replace(DRAFTER, **WIDE), replace(VERIFIER, **tight))
    assert caught.value.field == "max_step_bytes"


@pytest.mark.parametrize("layouts", [LayoutSet.IDS_ONLY, LayoutSet.DENSE])
def test_a_hello_that_offers_it_has_the_room(layouts: LayoutSet) -> None:
    hellos = [
        hello_of(
            role,
            ToyTarget(constant(1, 1, 1, 1, 1), 5),
            adaptation=Adaptation.ANY,
            layouts=layouts,
            max_sessions=1,
            max_slots=1,
            max_depth=2,
            max_support=3,
            features=Feature.MIRROR,
        )
        for role in (Role.VERIFIER, Role.DRAFTER)
    ]
    agreed = agree(*hellos)
    assert agreed.mirrors is (layouts is not LayoutSet.IDS_ONLY)
