"""The MAC of every frame: as the oracle has it, and of that frame in that place alone."""

from __future__ import annotations

import pytest

from draftwire.session.frame_mac import Sealer
from draftwire.wire.frames import encode_frame
from draftwire.wire.registry import FRAME_MAC_BYTES, MessageType, WireVersion
from spec.oracle import keys

KEY = bytes(range(32))
FRAMES = [
    encode_frame(WireVersion.V2, MessageType.PING, bytes(8)),
    encode_frame(WireVersion.V2, MessageType.REPLY, b"head", memoryview(bytes(5000)), b"", b"x"),
    encode_frame(WireVersion.V2, MessageType.PING),
]


def opened(sealer: Sealer, sealed: bytes) -> bool:
    view = memoryview(sealed)
    return sealer.opens(view[:-FRAME_MAC_BYTES], view[-FRAME_MAC_BYTES:])


def test_frames_sealed_together_or_one_by_one_are_the_oracles() -> None:
    """The parts of a frame are handed on as they are, never copied."""
    together = Sealer(KEY).seal([part for frame in FRAMES for part in frame])
    one_by_one = Sealer(KEY)
    assert together == [part for frame in FRAMES for part in one_by_one.seal(frame)]
    assert any(part is FRAMES[1][2] for part in together)
    due = []
    for number, frame in enumerate(FRAMES):
        whole = b"".join(frame)
        due.append(whole + keys.frame_mac(KEY, number, whole))
    assert b"".join(together) == b"".join(due)
    opener = Sealer(KEY)
    assert all(opened(opener, sealed) for sealed in due)


def test_every_changed_bit_is_refused() -> None:
    for frame in FRAMES[::2]:
        sealed = b"".join(Sealer(KEY).seal(frame))
        for bit in range(8 * len(sealed)):
            changed = bytearray(sealed)
            changed[bit // 8] ^= 1 << bit % 8
            assert not opened(Sealer(KEY), bytes(changed))


@pytest.mark.parametrize("order", [(1,), (0, 0), (0, 2), (1, 0), (0, 1, 1), (0, 2, 1)])
def test_a_frame_is_right_in_its_own_place_alone(order: tuple[int, ...]) -> None:
    """Left out, sent twice, changed about: the first one out of place is refused."""
    sealer = Sealer(KEY)
    sealed = [b"".join(sealer.seal(frame)) for frame in FRAMES]
    opener = Sealer(KEY)
    right = [opened(opener, sealed[index]) for index in order]
    assert right == [index == place for place, index in enumerate(order)]


def test_another_key_is_refused() -> None:
    sealed = b"".join(Sealer(KEY).seal(FRAMES[0]))
    assert not opened(Sealer(KEY[:-1] + b"\0"), sealed)
