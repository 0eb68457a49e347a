"""How a verifier's connection begins, and how it says why it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from draftwire.errors import ProtocolError, ProtocolErrorCode, TransportError
from draftwire.session.link import AgreedEvent, Closed, Link
from draftwire.transport.channel import Channel, UntrustedError
from draftwire.wire.agreement import Agreed

CLOSING_SECONDS: Final = 0.2


def handshake(channel: Channel, link: Link, deadline: float, clock: Callable[[], float]) -> Agreed:
    """Speak first and wait until both sides agree; deadline in seconds of the clock.

    Raises TransportError (no answer, or the end of the stream) and ProtocolError (refused, or
    another program).
    """
    link.start()
    try:
        while True:
            parts = link.outgoing()
            if parts:
                channel.send(parts, deadline)
            count = channel.receive_into(link.buffer(), deadline)
            event = link.filled(count, clock())
            if isinstance(event, AgreedEvent):
                return event.agreed
            if isinstance(event, Closed) and event.error is not None:
                send_final_error(channel, link, clock)
                raise event.error
    except TimeoutError as error:
        raise TransportError("the drafter did not answer HELLO in time") from error
    except UntrustedError as error:
        code = ProtocolErrorCode.AUTHENTICATION_FAILED
        raise ProtocolError(code, str(error), field="certificate") from error
    except ConnectionError as error:
        raise TransportError(f"no drafter answers HELLO there: {error}") from error


def send_final_error(channel: Channel, link: Link, clock: Callable[[], float]) -> None:
    """Send the one ERROR of a link that is over; it need not arrive."""
    try:
        parts = link.outgoing()
        if parts:
            channel.send(parts, clock() + CLOSING_SECONDS)
    except (TimeoutError, ConnectionError):
        return
