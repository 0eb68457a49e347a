"""Two hosts are made and removed whole where that can be done; elsewhere one line says why not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.twohosts import namespaces, run
from benchmarks.twohosts.namespaces import DEVICE, NoNamespacesError, existing, limiting, two_hosts


def available() -> bool:
    """Whether this machine lets us make namespaces at all."""
    try:
        with two_hosts():
            return True
    except NoNamespacesError:
        return False


def test_two_hosts_see_each_other_and_leave_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    if not available():
        assert run.main([]) == run.CANNOT
        said = capfd.readouterr().err
        assert said.count("\n") == 1 and "two hosts cannot be made here" in said
        return
    with two_hosts() as hosts:
        names = [hosts.name(role) for role in namespaces.ROLES]
        assert set(names) <= set(existing())
        hosts.limit(100)
        hosts.limit(1000)
        shown = subprocess.run(
            ["tc", "-n", names[0], "qdisc", "show", "dev", DEVICE],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "tbf" in shown and "1Gbit" in shown
        waits = subprocess.Popen(hosts.command("drafter", ["sleep", "60"]))
    assert waits.wait(5) != 0  # what ran there has been ended
    assert not set(names) & set(existing())


def test_a_failure_in_the_middle_leaves_nothing() -> None:
    if not available():
        return
    with pytest.raises(RuntimeError), two_hosts() as hosts:
        names = {hosts.name(role) for role in namespaces.ROLES}
        raise RuntimeError
    assert not names & set(existing())


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    assert run.main([]) == run.CANNOT != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_without_root_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/sbin/{program}")
    assert "as root, or with sudo" in refused(monkeypatch, capsys)


@pytest.mark.parametrize("program", ["ip", "tc"])
def test_without_a_program_it_says_what_to_install(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == program else name)
    said = refused(monkeypatch, capsys)
    assert f"'{program}'" in said and "iproute2" in said


def test_what_a_kernel_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A stand-in for ip that refuses everything, as a container without the capability does."""
    for program in ("ip", "tc"):
        path = tmp_path / program
        path.write_text("#!/bin/sh\necho 'Operation not permitted' >&2\nexit 1\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    said = refused(monkeypatch, capsys)
    assert "ip netns add" in said and "Operation not permitted" in said


@pytest.mark.parametrize(("megabits", "burst"), [(1000, 31250), (100, 6056)])
def test_what_is_let_through_at_once_is_small(megabits: int, burst: int) -> None:
    """A quarter of a millisecond of the rate, or four packets of 1,514 bytes."""
    command = limiting(megabits)
    assert command[command.index("rate") + 1] == f"{megabits}mbit"
    assert command[command.index("burst") + 1] == f"{burst}b"
