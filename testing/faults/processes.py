"""Child processes that are killed on purpose, and what the system says of a process (Linux)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from draftwire.drafter.program import DrafterConfig
from draftwire.drafter.server import serve
from draftwire.errors import TransportError
from draftwire.transport.tcp import Address
from testing.toys.models import ToyDrafter

FORK: Final = multiprocessing.get_context("fork")
"""Children begin with the compiled arithmetic of this process: a restart costs milliseconds."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BIND_SECONDS: Final = 10.0


def start(what: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Run a function in a child process, which ends with this one."""
    child = FORK.Process(target=what, args=arguments, daemon=True)
    child.start()
    return child


def kill(child: BaseProcess) -> None:
    """End a child as kill -9 does, and wait until it is gone."""
    child.kill()
    child.join()
    child.close()


def pause(child: BaseProcess) -> None:
    """Stop a child where it stands."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)


def resume(child: BaseProcess) -> None:
    """Let a paused child go on."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGCONT)


def resident(pid: int) -> int:
    """Return the bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def descriptors(pid: int) -> int:
    """Return how many file descriptors a process holds."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def run_drafter(engine: ToyDrafter, config: DrafterConfig, address: Address) -> None:
    """Serve until killed; the body of a child. A port that is still being left is tried again."""
    until = time.monotonic() + _BIND_SECONDS
    while True:
        try:
            serve(engine, config, host=address.host, port=address.port)
            return
        except TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
