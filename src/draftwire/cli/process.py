"""A drafter in a process of its own that cannot outlive this one."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from draftwire.errors import TransportError
from draftwire.transport.tcp import Address

READY = "listening on "
START_SECONDS = 120.0
STOP_SECONDS = 5.0


@contextmanager
def drafter_process(arguments: Sequence[str]) -> Iterator[Address]:
    """Run ``draftwire serve`` on a free loopback port and yield its address; end it afterwards.

    Raises TransportError when it does not come up.
    """
    command = [sys.executable, "-m", "draftwire", "serve", "--port", "0", "--until-stdin-closes"]
    with listening_process([*command, *arguments]) as address:
        yield address


@contextmanager
def listening_process(command: Sequence[str]) -> Iterator[Address]:
    """Run a program that prints where it listens, and yield that; end the program afterwards.

    The child must end when its standard input does, so that it also ends when this process is
    killed. It has a session of its own: Ctrl-C reaches this process alone, which then ends the
    child. Raises TransportError when it does not come up.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        yield _address_of(child.stdout)
    finally:
        _end(child)


def _address_of(output: IO[str]) -> Address:
    deadline = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            line = output.readline()
            if not line:
                raise TransportError("the drafter process ended before it was ready: see above")
            if line.startswith(READY):
                host, _, port = line[len(READY) :].strip().rpartition(":")
                return Address(host.strip("[]"), int(port))
    raise TransportError(f"the drafter process was not ready within {START_SECONDS:g} seconds")


def _end(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None and child.stdout is not None
    with contextlib.suppress(OSError):
        child.stdin.close()
    for insist in (child.poll, child.terminate, child.kill):
        insist()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
            break
    child.stdout.close()
