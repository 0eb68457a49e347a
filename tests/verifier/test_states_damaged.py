"""A STEP with states of which any byte is another one, its checksum right (P37, case M13)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.program import DrafterProgram
from draftwire.transport.channel import Channel, Part
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.agreement import step_bytes
from draftwire.wire.checksum import crc32c
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import HEADER_BYTES, TRAILER_BYTES, HiddenDtype, Layout, MessageType
from testing.toys.models import ToyContext, mixed
from testing.toys.states import Rows, StateDrafter, StateTarget

V = 7
TABLE = mixed(V, 3)
POLICY = ProposalPolicy(Layout.SPARSE, 2, 1.0, support=V)
PROMPT = (1, 4, 2)


class Changing(Channel):
    """Changes the payload of the first STEP with states that it carries, and its checksum."""

    def __init__(self, inner: Channel, at: int, mask: int) -> None:
        self.inner, self.at, self.mask = inner, at, mask
        self.size = 0  # of the payload that was changed

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        data = bytearray(b"".join(map(bytes, parts)))
        if not self.size and data[5] == MessageType.STEP and self._rows(data):
            self.size = len(data) - HEADER_BYTES - TRAILER_BYTES
            data[HEADER_BYTES + self.at % self.size] ^= self.mask
            payload = bytes(data[HEADER_BYTES:-TRAILER_BYTES])
            data[-TRAILER_BYTES:] = struct.pack("<I", crc32c(payload))
        self.inner.send([bytes(data)], deadline)

    def _rows(self, data: bytearray) -> int:
        (rows,) = struct.unpack_from("<H", data, HEADER_BYTES + step_bytes(0) - 4)
        return int(rows)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        return self.inner.receive_into(buffer, deadline)

    def close(self) -> None:
        self.inner.close()


class Lenient(StateDrafter):
    """Reads any token out of states, one of the vocabulary; holds that all are finite."""

    def take_states(self, context: ToyContext, first: int, rows: Rows) -> None:
        assert np.isfinite(rows).all()
        rows = rows.copy()
        rows[:, 0] = np.clip(np.abs(rows[:, 0]), 1, V)
        super().take_states(context, first, rows)  # type: ignore[arg-type]


def run(at: int, mask: int) -> tuple[Changing, Lenient, dict[str, int]]:
    target, engine = StateTarget(TABLE, V), Lenient(TABLE, V)
    channels: list[Changing] = []

    def through(channel: Channel) -> Channel:
        channels.append(Changing(channel, at, 0 if channels else mask))
        return channels[-1]

    program = DrafterProgram(engine, DrafterConfig())
    with LocalDrafter(program, target, through=through, state_dtype=HiddenDtype.FLOAT32) as client:
        sampling = Sampling(seed=5, max_tokens=30)
        with generate(target, client, PROMPT, sampling, POLICY) as text:
            tokens = [each.token for each in text]
        assert len(tokens) == 30
        assert text.report.accepted > 0
        misses = {reason.name: count for reason, count in text.report.misses.items()}
    assert engine.contexts == []
    return channels[0], engine, misses


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_any_byte_may_be_another_one(mask: int) -> None:
    """The text is whole, later rounds are drafted, and no row that is not finite is read."""
    sound, _, misses = run(0, 0)
    assert misses == {}
    untouched = refused = 0
    for at in range(sound.size):
        _, engine, misses = run(at, mask)
        assert engine.informed + engine.flat > 6
        untouched += not misses
        refused += bool(misses)
    assert untouched > 0  # a row that is another one costs acceptance alone
    assert refused > 0
