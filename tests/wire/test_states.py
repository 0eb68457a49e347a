"""P36 and P37: states are agreed, and their rows decode canonically or not at all (case M13)."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.agreement import Agreed, agree, answer, bounds, step_bytes
from draftwire.wire.codec import decode, encode
from draftwire.wire.messages import Hello, Step
from draftwire.wire.registry import (
    MAX_STATE_LAYERS,
    Feature,
    HiddenDtype,
    MessageType,
    Role,
    WireVersion,
)
from draftwire.wire.states import MOST_BLOCK_BYTES, StateFormat, finite
from spec.oracle.frames import Frame, Refused
from spec.oracle.messages import read_message
from testing.harness.messages import (
    AGREED,
    AGREED_STATES,
    DRAFTER,
    OFFERS_STATES,
    READS_STATES,
    STATES_STEP,
    STEP,
    VERIFIER,
    payload_of,
)

CODE = ProtocolErrorCode
V2 = WireVersion.V2
HEAD = step_bytes(0)
NUMBERS = (
    *("version", "layouts", "vocab_size", "max_slots", "max_depth", "max_support", "features"),
    *("hidden_rows", "hidden_dtype", "hidden_width"),
)
LIMITS = {name: int(getattr(AGREED_STATES, name)) for name in NUMBERS} | {
    "hidden_layers": list(AGREED_STATES.hidden_layers)
}


def read(payload: bytes, agreed: Agreed = AGREED_STATES) -> Step:
    message = decode(MessageType.STEP, agreed.version, memoryview(payload), agreed)
    assert isinstance(message, Step)
    return message


def refused(payload: bytes, agreed: Agreed = AGREED_STATES) -> tuple[str, str]:
    with pytest.raises(ProtocolError) as caught:
        read(payload, agreed)
    return caught.value.code.name, caught.value.field or ""


def hello_back(hello: Hello) -> Hello:
    message = decode(MessageType.HELLO, V2, memoryview(payload_of(hello)), None)
    assert isinstance(message, Hello)
    return message


def test_a_step_with_states_comes_back() -> None:
    assert AGREED_STATES.states == StateFormat((1, 3), 3, HiddenDtype.BFLOAT16)
    again = read(payload_of(STATES_STEP))
    assert replace(again, hidden=bytes(again.hidden)) == STATES_STEP


def test_every_flipped_bit_of_a_step_is_read_alike_by_both_readers() -> None:
    """Nothing that is not finite is let through, and what decodes encodes to the same bytes."""
    good = payload_of(STATES_STEP)
    fine = inside = 0
    for at in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[at // 8] ^= 1 << at % 8
        payload = bytes(flipped)
        try:
            read_message(Frame(2, "STEP", payload), LIMITS)
        except Refused as refusal:
            assert refused(payload) == (refusal.code, refusal.field)
            inside += refusal.field == "hidden_rows" and at // 8 >= HEAD
            continue
        fine += 1
        assert b"".join(encode(read(payload))) == payload
    assert fine > 0
    assert inside > 0


@pytest.mark.parametrize("dtype", [HiddenDtype.BFLOAT16, HiddenDtype.FLOAT32], ids=lambda d: d.name)
def test_what_is_finite_is_what_numpy_finds_finite(dtype: HiddenDtype) -> None:
    if dtype is HiddenDtype.BFLOAT16:  # every value there is
        items = np.arange(1 << 16, dtype=np.uint16)
        numbers = (items.astype(np.uint32) << 16).view(np.float32)
    else:
        random = np.random.default_rng(7)
        items = random.integers(0, 1 << 32, 1 << 14, dtype=np.uint32)
        items[::3] |= 0x7F800000
        items[::5] = 0x7F7FFFFF
        numbers = items.view(np.float32)
    due = np.isfinite(numbers)
    assert 0 < due.sum() < len(due)
    assert [finite(item.tobytes(), dtype) for item in items] == due.tolist()
    assert finite(items[due].tobytes(), dtype)
    assert not finite(items.tobytes(), dtype)
    assert finite(b"", dtype)


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("item", ["807f", "80ff", "c07f", "ffff"])
def test_an_element_that_is_not_finite_is_refused_wherever_it_stands(at: int, item: str) -> None:
    hidden = bytearray(STATES_STEP.hidden)
    hidden[2 * at : 2 * at + 2] = bytes.fromhex(item)
    payload = payload_of(replace(STATES_STEP, hidden=bytes(hidden)))
    assert refused(payload) == ("BAD_FIELD", "hidden_rows")


def test_rows_that_nothing_was_agreed_of_stay_opaque() -> None:
    nan = struct.pack("<3H", 0x7FC0, 0xFF80, 0xFFFF)
    assert bytes(read(payload_of(replace(STEP, hidden=nan)), AGREED).hidden) == nan


def test_no_row_is_of_the_anchor_or_of_no_token() -> None:
    for tokens, rows in (((4,), 1), ((), 1), ((0, 4), 2)):
        step = replace(STATES_STEP, base=6 - len(tokens), tokens=tokens)
        payload = payload_of(replace(step, hidden_rows=rows, hidden=bytes(12 * rows)))
        assert refused(payload) == ("BAD_FIELD", "hidden_rows")
    step = replace(STATES_STEP, base=4, tokens=(0, 4), hidden_rows=1, hidden=bytes(12))
    assert read(payload_of(step)).hidden_rows == 1


def test_every_other_length_is_refused() -> None:
    good = payload_of(STATES_STEP)
    for size in range(len(good)):
        assert refused(good[:size])[0] == "BAD_LENGTH"
    assert refused(good + b"\0") == ("BAD_LENGTH", "")


# HELLO -------------------------------------------------------------------------------------------


def both_ways(verifier: Hello, drafter: Hello) -> Agreed:
    agreed = agree(drafter, verifier)
    told = hello_back(answer(drafter, agreed))
    assert agree(verifier, told) == agreed
    return agreed


FUSES: dict[str, Any] = {"features": Feature.STATES | Feature.FUSED}


def test_the_type_is_the_verifier_s_and_the_width_the_drafter_s() -> None:
    drafter = replace(READS_STATES, hidden_dtype=HiddenDtype.FLOAT32, hidden_width=5)
    agreed = both_ways(OFFERS_STATES, drafter)
    assert agreed.states == StateFormat((1, 3), 5, HiddenDtype.BFLOAT16)
    assert agreed.hidden_row_bytes == 2 * 5 * 2


def test_rows_are_fused_where_both_can() -> None:
    verifier, drafter = replace(OFFERS_STATES, **FUSES), replace(READS_STATES, **FUSES)
    drafter = replace(drafter, projection=b"P" * 32)
    agreed = both_ways(verifier, drafter)
    assert agreed.states == StateFormat((1, 3), 3, HiddenDtype.BFLOAT16, fused=True)
    assert (agreed.projection, agreed.hidden_row_bytes) == (b"P" * 32, 6)
    raw = both_ways(OFFERS_STATES, drafter)
    assert raw.states == StateFormat((1, 3), 3, HiddenDtype.BFLOAT16)
    assert raw.projection == b""


@pytest.mark.parametrize("verifier", [VERIFIER, replace(VERIFIER, hidden_rows=0)])
def test_a_drafter_that_reads_states_shows_nothing_of_it_to_who_has_none(verifier: Hello) -> None:
    agreed = agree(READS_STATES, verifier)
    told = answer(READS_STATES, agreed)
    assert (agreed.states, agreed.hidden_rows, told.features) == (None, 0, 0)
    plain = replace(DRAFTER, hidden_rows=0, hidden_dtype=HiddenDtype.NONE, hidden_width=0)
    assert payload_of(told) == payload_of(answer(plain, agree(plain, verifier)))


def test_a_verifier_that_offers_states_goes_on_with_a_drafter_without() -> None:
    agreed = both_ways(OFFERS_STATES, replace(DRAFTER, hidden_rows=0))
    assert (agreed.states, agreed.hidden_rows, agreed.hidden_row_bytes) == (None, 0, 0)


def test_an_answer_in_another_type_is_refused() -> None:
    told = answer(READS_STATES, agree(READS_STATES, OFFERS_STATES))
    with pytest.raises(ProtocolError) as caught:
        agree(OFFERS_STATES, replace(told, hidden_dtype=HiddenDtype.FLOAT32))
    assert caught.value.field == "hidden_dtype"


def test_the_largest_block_is_the_bound_of_the_drafter_s_hello_alone() -> None:
    most = replace(READS_STATES, **FUSES, projection=bytes(32))
    most = replace(most, hidden_layers=tuple(range(MAX_STATE_LAYERS)))
    assert hello_back(most) == most
    least, largest = bounds(None, receiver=Role.VERIFIER).payload[MessageType.HELLO]
    assert len(payload_of(most)) == largest == least + MOST_BLOCK_BYTES
    assert bounds(None, receiver=Role.DRAFTER).payload[MessageType.HELLO] == (least, least)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_layers": ()},
        {"hidden_layers": (3, 1)},
        {"hidden_layers": (1, 1)},
        {"hidden_layers": (1 << 16,)},
        {"hidden_layers": tuple(range(MAX_STATE_LAYERS + 1))},
        {"projection": bytes(32)},
        {**FUSES, "projection": b""},
    ],
)
def test_what_is_no_block_is_not_said(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, ProtocolError)):
        encode(replace(READS_STATES, **wrong))
