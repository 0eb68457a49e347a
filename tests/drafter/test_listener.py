"""A process that is out of descriptors accepts no connection, and does not spin meanwhile."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import time

import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.transport.tcp import accept, bound_address, listen
from draftwire.verifier.generate import generate
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.servers import serving
from testing.toys.models import ToyDrafter, ToyTarget, mixed

V = 11
POLICY = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=5)


def text(drafter: RemoteDrafter) -> None:
    run = generate(ToyTarget(mixed(V, 1), V), drafter, (1,), Sampling(seed=1, max_tokens=9), POLICY)
    assert len(list(run)) == 9
    assert not run.report.misses


def test_accept_says_that_descriptors_have_run_out() -> None:
    listener = listen("127.0.0.1", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listener, socket.create_connection(bound_address(listener)):
        lowest = os.dup(listener.fileno())
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(OSError) as raised:
                accept(listener)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert raised.value.errno == errno.EMFILE
        accepted = accept(listener)  # who waited waits still
        assert accepted is not None
        accepted.close()
        assert accept(listener) is None


def test_one_that_goes_away_while_it_is_accepted_costs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Options of a socket may be refused once its peer is gone; the next one is accepted."""
    from draftwire.transport import tcp

    calls = []

    def refuses_first(connected: socket.socket) -> None:
        calls.append(connected)
        if len(calls) == 1:
            raise OSError(errno.EINVAL, "gone")

    monkeypatch.setattr(tcp, "prepare", refuses_first)
    listener = listen("127.0.0.1", 0)
    address = bound_address(listener)
    with listener, socket.create_connection(address), socket.create_connection(address):
        accepted = accept(listener)
        assert accepted is calls[1]
        assert calls[0].fileno() == -1
        accepted.close()


def test_a_drafter_without_descriptors_serves_who_is_there_and_waits_without_spinning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "draftwire")
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig())
    refused: list[float] = []
    with serving(program) as server:
        first = RemoteDrafter(server.address, ToyTarget(mixed(V, 1), V), deadline=20.0)
        second = RemoteDrafter(server.address, ToyTarget(mixed(V, 1), V), deadline=20.0)
        with first, second:
            text(first)

            def out_of_descriptors(listener: socket.socket) -> None:
                refused.append(time.monotonic())
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            monkeypatch.setattr("draftwire.drafter.listener.SHUT_SECONDS", 0.2)
            monkeypatch.setattr("draftwire.drafter.listener.accept", out_of_descriptors)
            with socket.create_connection(server.address):
                began = time.monotonic()
                text(first)
                time.sleep(0.7)
                assert 1 <= len(refused) <= 1 + (time.monotonic() - began) / 0.2
                monkeypatch.undo()
                text(second)
    assert program.counters.exhausted == len(refused)
    said = [record.getMessage() for record in caplog.records]
    said = [line for line in said if "no connection can be accepted" in line]
    assert len(said) == 1 and "too many open files" in said[0].lower()


def test_a_drafter_ends_while_it_does_not_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_descriptors(listener: socket.socket) -> None:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr("draftwire.drafter.listener.accept", out_of_descriptors)
    program = DrafterProgram(ToyDrafter(mixed(V, 1), V), DrafterConfig())
    with serving(program) as server, socket.create_connection(server.address):
        until = time.monotonic() + 10
        while not program.counters.exhausted:
            assert time.monotonic() < until
            time.sleep(0.005)
        server.drain(5.0)
