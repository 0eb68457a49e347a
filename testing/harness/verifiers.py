"""A verifier by hand over a channel: it says and reads only what it is told to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from draftwire.session.link import Link
from draftwire.session.verifier_session import VerifierSession
from draftwire.transport.channel import Channel
from draftwire.transport.keys import PresharedKey
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address, TcpChannel
from draftwire.transport.tls import Tls, TlsFiles
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.messages import Message
from draftwire.wire.registry import NONCE_BYTES

SECONDS = 20.0
NONCE = bytes(range(NONCE_BYTES))


class HandVerifier:
    """A link over a channel, and time that stands still in it.

    seconds: of every wait. key: of the handshake. changes: fields of HELLO.
    """

    def __init__(
        self,
        channel: Channel,
        target: ModelIdentity,
        *,
        key: bytes = b"",
        seconds: float = SECONDS,
        **changes: Any,
    ) -> None:
        self.channel = channel
        self.seconds = seconds
        hello = replace(verifier_hello(target), **changes)
        self.link = Link(hello, 0.0, key, NONCE if key else b"")

    @classmethod
    def to(
        cls,
        address: Address,
        target: ModelIdentity,
        security: Security | None = None,
        **changes: Any,
    ) -> HandVerifier:
        """Connect over TCP, and TLS where there are certificates; nothing is said yet."""
        until = time.monotonic() + SECONDS
        if isinstance(security, TlsFiles):
            return cls(Tls(security, server=False).connect(address, until), target, **changes)
        key = security.secret if isinstance(security, PresharedKey) else b""
        return cls(TcpChannel.connect(address, until), target, key=key, **changes)

    def say_hello(self) -> None:
        """Say HELLO and do not wait for its answer."""
        self.link.start()
        self.flush()

    def agree(self) -> bool:
        """Say HELLO, if that has not been done, and wait until it is agreed; False at the end."""
        if not any(self.link.sent.values()):
            self.say_hello()
        with suppress(ConnectionError):
            while self.link.agreed is None and not self.link.closed:
                list(self.read())
                self.flush()  # of a keyed handshake
        return self.link.agreed is not None

    def session(
        self, number: int = 1, prompt: Sequence[int] = (1, 2), *, slot: int | None = None
    ) -> VerifierSession:
        """Return the asking half of a session."""
        place = number - 1 if slot is None else slot
        return VerifierSession(number, place, prompt, 5, self.link.agreed)

    def send(self, *messages: Message) -> None:
        """Send messages, and whatever the link has to say beside."""
        for message in messages:
            self.link.send(message)
        self.flush()

    def ping(self, nonce: int = 1) -> None:
        """Send one PING."""
        self.link.ping(nonce, 0.0)
        self.flush()

    def flush(self) -> None:
        """Send what the link has to say."""
        if parts := self.link.outgoing():
            self.channel.send([b"".join(parts)], time.monotonic() + self.seconds)

    def read(self, most: int | None = None) -> Iterator[Any]:
        """Wait for bytes and yield the events that they complete, each valid until the next."""
        room = self.link.buffer()[:most]
        count = self.channel.receive_into(room, time.monotonic() + self.seconds)
        event = self.link.filled(count, 0.0)
        while event is not None:
            yield event
            event = self.link.filled(0, 0.0)

    def events(self, count: int) -> list[Any]:
        """Read until there are so many events, or the link is over."""
        found: list[Any] = []
        while len(found) < count and not self.link.closed:
            found += self.read()
        return found

    def heard(self) -> bool:
        """Whether anything comes before the connection ends."""
        room = self.link.buffer()
        try:
            return self.channel.receive_into(room, time.monotonic() + self.seconds) > 0
        except ConnectionError:
            return False

    def close(self) -> None:
        """End the connection."""
        self.channel.close()
