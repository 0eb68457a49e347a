"""Unauthenticated peers at the port of a real drafter while a text is made: nonsense, and a flood.

What they are told and whether they are hung up on is seen on their own sockets.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

from draftwire.drafter.program import DrafterConfig
from draftwire.wire.registry import HEADER_BYTES, MAGIC
from testing.faults.real import DEADLINE, START, Box, Ran, box, run

HTTP: Final = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PICKLE: Final = b"\x80\x04\x95" + bytes(300)
EVERY: Final = range(4, 24, 4)
"""Rounds after which one comes."""


def _speaks(one: Box, said: bytes, wrong: list[str]) -> None:
    """Say it; the drafter is to answer with one frame (an ERROR) and to hang up."""
    with socket.create_connection(one.address, START) as peer:
        peer.sendall(said)
        heard = b""
        try:
            while data := peer.recv(1 << 16):
                heard += data
        except ConnectionResetError:
            pass  # hung up on with bytes of ours unread
        except TimeoutError:
            wrong.append("an unauthenticated peer is not hung up on")
        if heard and (heard[:4] != MAGIC or len(heard) < HEADER_BYTES):
            wrong.append("an unauthenticated peer was sent something else than a frame")


def _spoken(name: str, said: bytes) -> Ran:
    wrong: list[str] = []
    with box() as one:
        ran = run(name, one, dict.fromkeys(EVERY, partial(_speaks, one, said, wrong)), pace=0.01)
    ran.wrong += wrong + _lost(ran)
    return ran


def speaks_http() -> Ran:
    """HTTP at the port."""
    return _spoken("unauthenticated peers speak HTTP", HTTP)


def sends_pickle() -> Ran:
    """A pickle at the port."""
    return _spoken("unauthenticated peers send a pickle", PICKLE)


def sends_half_a_frame() -> Ran:
    """Half a header, and then nothing, on connections that stay."""
    with ExitStack() as held, box() as one:

        def come() -> None:
            peer = held.enter_context(socket.create_connection(one.address, START))
            peer.sendall(MAGIC + b"\x02\x01")

        ran = run(
            "unauthenticated peers send half a frame", one, dict.fromkeys(EVERY, come), pace=0.01
        )
    ran.wrong += _lost(ran)
    return ran


def take_every_connection() -> Ran:
    """More unauthenticated peers than there are connections.

    The text keeps the one that it has; a verifier that comes while all are taken gets one.
    """
    with ExitStack() as held, box() as one:

        def come() -> None:
            for _ in range(DrafterConfig().max_connections + 8):
                held.enter_context(socket.create_connection(one.address, START))

        first = run("unauthenticated peers take every connection", one, {4: come}, pace=0.01)
        first.wrong += _lost(first)
        later = run("", one, {}, pace=0.01)
        first.wrong += [f"a verifier that comes later: {what}" for what in later.wrong]
        if later.report.misses:
            first.wrong.append("a verifier that comes later has no drafts")
        return first


def _lost(ran: Ran) -> list[str]:
    """What they cost a text: nothing, unless the machine is slower than the deadline."""
    lost = {reason.value: n for reason, n in ran.report.misses.items()}
    return [f"lost by others' doing within {DEADLINE} s: {lost}"] if lost else []


FAULTS: Final[tuple[Callable[[], Ran], ...]] = (
    speaks_http,
    sends_pickle,
    sends_half_a_frame,
    take_every_connection,
)
"""What `make faults` runs beside those of :mod:`testing.faults.real`."""
