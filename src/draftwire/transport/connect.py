"""Connecting to one of the addresses of a name, all of it before one deadline.

Deadlines are seconds of ``time.monotonic``.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from typing import Any, Final

from draftwire.transport.times import seconds_until

LEAST_WAIT: Final = 0.001  # seconds; 0 would mean not to wait, but to ask later

_Found = list[tuple[Any, ...]]  # what getaddrinfo returns
_LOOKUPS: Final[dict[tuple[str, int], Future[_Found]]] = {}  # those that run
_LOCK: Final = threading.Lock()


def dial(host: str, port: int, deadline: float) -> socket.socket:
    """Return a socket connected to the first address of a host that answers.

    Each address gets its share of the time that is left, so the last one ends at the deadline.
    Raises OSError, TimeoutError included, and UnicodeError for a name that no host can have.
    """
    if not host:
        raise OSError("the host has no name")  # the system would take it for this machine
    found = _resolve(host, port, deadline)
    first: OSError | None = None
    for index, (family, kind, protocol, _, address) in enumerate(found):
        left = seconds_until(deadline)
        if left <= 0 and first is not None:
            break
        try:
            tried = socket.socket(family, kind, protocol)
        except OSError as error:  # this system does not speak that family, or has none to spare
            first = first or error
            continue
        try:
            tried.settimeout(max(left / (len(found) - index), LEAST_WAIT))
            tried.connect(address)
        except OSError as error:
            tried.close()
            first = first or error
        except BaseException:
            tried.close()
            raise
        else:
            return tried
    raise first or OSError("the name has no address")


def _resolve(host: str, port: int, deadline: float) -> _Found:
    """Return the addresses of a host.

    The system's resolver knows no deadline. It is waited for in a thread; past the deadline that
    one goes on until the resolver gives up, at most one for each host and port.
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # a name, which is asked for
    with _LOCK:
        lookup = _LOOKUPS.get((host, port))
        if lookup is None:
            lookup = Future()
            thread = threading.Thread(
                target=_look_up, args=(host, port, lookup), name="draftwire-name", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left
                raise OSError("no thread to resolve the name in") from error
            _LOOKUPS[host, port] = lookup
    try:
        return lookup.result(max(seconds_until(deadline), LEAST_WAIT))
    except TimeoutError as error:
        raise TimeoutError("the name was not resolved in time") from error


def _look_up(host: str, port: int, lookup: Future[_Found]) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except BaseException as error:
        lookup.set_exception(error)
    else:
        lookup.set_result(found)
    finally:
        with _LOCK:
            _LOOKUPS.pop((host, port), None)
