"""The states and transitions of a connection as one table of data, the same for both roles."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from draftwire.session.state_table import StateTable


class LinkState(StrEnum):
    """Where a connection stands; the value is its meaning."""

    KEYED = "the key is not proved yet"
    FRESH = "no HELLO yet"
    GREETED = "one HELLO, the answer is due"
    AGREED = "both HELLOs; everything else may come"
    CLOSED = "nothing more is sent or read"


class LinkInput(StrEnum):
    """What can happen to a connection; the value is its meaning."""

    PROVED = "both sides have proved that they hold the key"
    HELLO = "HELLO"
    MESSAGE = "any other message"
    FAULT = "a protocol error, or the peer's ERROR about the connection"
    END = "the stream has ended, or is ended here"


LINK: Final = StateTable(
    LinkState,
    LinkInput,
    {
        LinkState.KEYED: {
            LinkInput.PROVED: LinkState.FRESH,
            LinkInput.FAULT: LinkState.CLOSED,
            LinkInput.END: LinkState.CLOSED,
        },
        LinkState.FRESH: {
            LinkInput.HELLO: LinkState.GREETED,
            LinkInput.FAULT: LinkState.CLOSED,
            LinkInput.END: LinkState.CLOSED,
        },
        LinkState.GREETED: {
            LinkInput.HELLO: LinkState.AGREED,
            LinkInput.FAULT: LinkState.CLOSED,
            LinkInput.END: LinkState.CLOSED,
        },
        LinkState.AGREED: {
            LinkInput.MESSAGE: LinkState.AGREED,
            LinkInput.FAULT: LinkState.CLOSED,
            LinkInput.END: LinkState.CLOSED,
        },
        LinkState.CLOSED: {LinkInput.END: LinkState.CLOSED},
    },
)
"""The connection's machine, the same for both roles; a missing entry is a protocol error."""

advance: Final = LINK.advance
