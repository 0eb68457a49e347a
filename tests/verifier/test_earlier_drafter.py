"""P33: a drafter of an earlier version knows HELLO's features as reserved, and is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from draftwire.errors import ProtocolErrorCode, RemoteError
from draftwire.transport.channel import Channel, Part
from draftwire.verifier.generate import generate
from draftwire.verifier.sampling import Sampling
from draftwire.wire.codec import decode, encode
from draftwire.wire.frames import encode_frame
from draftwire.wire.messages import ErrorMessage, Hello, ProposalPolicy
from draftwire.wire.registry import (
    HEADER_BYTES,
    NO_FEATURES,
    TRAILER_BYTES,
    Feature,
    Layout,
    MessageType,
    WireVersion,
)
from testing.harness.paths import PATHS, drafting
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 8
POLICY = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=V)


class Earlier:
    """A channel to a drafter that refuses a HELLO whose reserved bytes are not zero."""

    def __init__(self, channel: Channel, field: str, hellos: list[Hello]) -> None:
        self._channel = channel
        self._field = field
        self._hellos = hellos
        self._refusal = b""

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        data = b"".join(bytes(part) for part in parts)
        if data[5] == MessageType.HELLO:
            payload = memoryview(data)[HEADER_BYTES : len(data) - TRAILER_BYTES]
            hello = decode(MessageType.HELLO, WireVersion.V2, payload, None)
            assert isinstance(hello, Hello)
            self._hellos.append(hello)
            if hello.features:
                code = ProtocolErrorCode.BAD_PADDING
                error = encode(ErrorMessage(code, field=self._field))
                frame = encode_frame(WireVersion.V2, MessageType.ERROR, *error)
                self._refusal = b"".join(bytes(part) for part in frame)
                return
        self._channel.send(parts, deadline)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        if self._refusal:
            count = len(self._refusal)
            buffer[:count], self._refusal = self._refusal, b""
            return count
        return self._channel.receive_into(buffer, deadline)

    def close(self) -> None:
        self._channel.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


@pytest.mark.parametrize("path", PATHS)
def test_it_is_offered_nothing_and_drafts(path: str) -> None:
    table, hellos = mixed(V, 2), list[Hello]()
    target = ToyTarget(table, V)
    with drafting(
        path,
        ToyDrafter(table, V),
        target,
        through=lambda channel: Earlier(channel, "features", hellos),
    ) as client:
        with generate(target, client, (1,), Sampling(seed=1, max_tokens=20), POLICY) as text:
            list(text)
        assert client.agreed is not None
        assert client.agreed.features is NO_FEATURES
    assert [each.features for each in hellos] == [Feature.MIRROR, NO_FEATURES]
    assert not text.report.misses
    assert text.report.accepted > 5


def test_another_refusal_is_one() -> None:
    hellos: list[Hello] = []
    target = ToyTarget(mixed(V, 2), V)
    with (
        drafting(
            "colocated",
            ToyDrafter(mixed(V, 2), V),
            target,
            through=lambda channel: Earlier(channel, "layouts", hellos),
        ) as client,
        pytest.raises(RemoteError) as caught,
    ):
        client.connect()
    assert caught.value.field == "layouts"
    assert len(hellos) == 1
