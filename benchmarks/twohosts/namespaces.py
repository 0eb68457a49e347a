"""Two network namespaces of Linux with a cable between them: made, limited, and taken away again.

Everything goes through ``ip`` and ``tc``. Names hold the number of the process that made them, so
that what a killed run has left is known and removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX: Final = "draftwire-"
ROLES: Final = ("verifier", "drafter")
DEVICE: Final = "wire"  # the cable's end, of the same name in both namespaces
ADDRESSES: Final = {"verifier": "192.0.2.1", "drafter": "192.0.2.2"}  # RFC 5737: of documents
_MTU_BYTES: Final = 1514
_BURST_SECONDS: Final = 0.25e-3
_LEAST_BURST: Final = 4 * _MTU_BYTES
_QUEUE_BYTES: Final = 4 << 20
_GRACE_SECONDS: Final = 3.0


class NoNamespacesError(Exception):
    """Namespaces cannot be made here; one line says why and what to do."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """The two namespaces of one run, by the number of its process."""

    pid: int

    def name(self, role: str) -> str:
        """Return the namespace of ``verifier`` or ``drafter``."""
        return f"{PREFIX}{role}-{self.pid}"

    def command(self, role: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs a program of this machine on that host."""
        return ["ip", "netns", "exec", self.name(role), *arguments]

    def limit(self, megabits: int) -> None:
        """Let both ends of the cable send so many 10^6 bits a second from now on."""
        for role in ROLES:
            _run(["tc", "-n", self.name(role), *limiting(megabits)])


def limiting(megabits: int) -> list[str]:
    """Return what tells tc to hold a device to a rate by a token bucket.

    What a bucket lets through at once is small beside what is measured: a quarter of a millisecond
    of the rate, or four packets.
    """
    burst = max(_LEAST_BURST, round(megabits * 1e6 / 8 * _BURST_SECONDS))
    rate = ["rate", f"{megabits}mbit", "burst", f"{burst}b", "limit", f"{_QUEUE_BYTES}b"]
    return ["qdisc", "replace", "dev", DEVICE, "root", "tbf", *rate]


def require() -> None:
    """Raise NoNamespacesError, one line with what to do, where two hosts cannot be made."""
    if not sys.platform.startswith("linux"):
        raise NoNamespacesError("network namespaces are Linux's: run this on Linux")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise NoNamespacesError(
                f"'{program}' is not on the path: install iproute2 (or iproute and iproute-tc)"
            )
    if os.geteuid() != 0:
        raise NoNamespacesError("network namespaces need root: run it again as root, or with sudo")


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Make two namespaces joined by a cable, and remove them and what runs in them afterwards.

    Raises NoNamespacesError; nothing is left then either.
    """
    require()
    remove_left_over()
    hosts = Hosts(os.getpid())
    try:
        for role in ROLES:
            _run(["ip", "netns", "add", hosts.name(role)])
        near, far = (hosts.name(role) for role in ROLES)
        ends = ["type", "veth", "peer", "name", DEVICE, "netns", far]
        _run(["ip", "link", "add", DEVICE, "netns", near, *ends])
        for role in ROLES:
            inside = ["ip", "-n", hosts.name(role)]
            _run([*inside, "address", "add", f"{ADDRESSES[role]}/30", "dev", DEVICE])
            for device in ("lo", DEVICE):
                _run([*inside, "link", "set", device, "up"])
        yield hosts
    finally:
        with _unhurried():
            for role in ROLES:
                remove(hosts.name(role))


def remove_left_over() -> None:
    """Remove the namespaces of runs that were killed."""
    for name in existing():
        pid = name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            remove(name)


def existing() -> list[str]:
    """Return the names of this program's namespaces that are there."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    return [name for name in names if name.startswith(PREFIX)]


def remove(name: str) -> None:
    """End what runs in a namespace of ours; remove it and the cable. Nothing if it is not there."""
    if name not in existing():
        return
    until = time.monotonic() + _GRACE_SECONDS
    while inside := _processes(name):
        kind = signal.SIGTERM if time.monotonic() < until else signal.SIGKILL
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kind)
        time.sleep(0.05)
    subprocess.run(["ip", "netns", "delete", name], check=False)


def _processes(name: str) -> list[int]:
    found = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


@contextmanager
def _unhurried() -> Iterator[None]:
    """Let no second Ctrl-C come between the removal of one thing and the next."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main one's
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoNamespacesError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NoNamespacesError(
            f"'{' '.join(command)}' failed ({said}): this kernel or container does not allow it;"
            " run it where namespaces, veth and tc's tbf are there"
        )
