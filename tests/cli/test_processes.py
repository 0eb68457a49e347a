"""Real processes: what they print, how they end, and that none is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from draftwire.errors import ExitCode
from tests.cli.conftest import Cli, Pair

DRAFTWIRE = (sys.executable, "-m", "draftwire")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def hear_interrupts() -> None:
    """Undo what a shell does for a suite in the background, whose children would ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(*arguments: str, **options: int) -> Iterator[subprocess.Popen[str]]:
    """A draftwire process in a group of its own, as a shell starts it; killed if it is left."""
    process = subprocess.Popen(
        [*DRAFTWIRE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        process_group=0,
        preexec_fn=hear_interrupts,
        **options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    """Process ids whose parent is ``pid``."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_gone(pids: list[int], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while any(map(running, pids)):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.05)


def demo_arguments(pair: Pair) -> tuple[str, ...]:
    models = ("--target", str(pair.target), "--drafter", str(pair.drafter))
    return ("demo", *models, "--prompt", "w3 w7 w9", "--layout", "sparse:8", "--depth", "3")


def wait_for_children(process: subprocess.Popen[str]) -> list[int]:
    deadline = time.monotonic() + 30
    while not (found := children(process.pid)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("starting", signal.SIGINT),
        ("measuring", signal.SIGINT),
        ("measuring", signal.SIGKILL),
    ],
)
def test_an_interrupted_demo_leaves_no_process(
    pair: Pair, moment: str, number: signal.Signals
) -> None:
    with started(*demo_arguments(pair), "--repeats", "100000") as process:
        drafters = wait_for_children(process)
        assert process.stdout is not None
        if moment == "measuring":
            for line in process.stdout:
                if line.startswith("w3 w7 w9"):
                    break
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=30)
        wait_until_gone(drafters)
    if number is signal.SIGINT:
        assert process.returncode == ExitCode.INTERRUPTED
        assert err.strip().splitlines()[-1] == "draftwire: interrupted"
    assert "Traceback" not in err
    assert "info draftwire" not in err  # what the drafter logs is no part of the show


def test_demo_runs_and_reports(cli: Cli, pair: Pair) -> None:
    before = children(os.getpid())  # helpers of other tests that share this process
    ran = cli(*demo_arguments(pair), "--quick")
    assert ran.code == ExitCode.OK, ran.err
    assert "\x1b" not in ran.out
    for said in (
        "accepted  ‹corrected›  «bonus»",
        "tokens per target pass",
        "acceptance by position",
        "bytes per position",
        "discarded",
        "remote",
        "colocated in one process",
        "target-only",
    ):
        assert said in ran.out
    assert set(children(os.getpid())) <= set(before)


def test_demo_as_json(cli: Cli, pair: Pair) -> None:
    found = json.loads(cli(*demo_arguments(pair), "--quick", "--json").out)
    assert found["report"]["drafted"] > 0
    assert set(found["tokens_per_second"]) == {"remote", "colocated", "target-only"}


def serve_arguments(pair: Pair, *more: str) -> tuple[str, ...]:
    return ("serve", "--model", str(pair.drafter), "--port", "0", "--threads", "1", *more)


def address_of(process: subprocess.Popen[str]) -> tuple[str, int]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on 127.0.0.1:"), line
    return "127.0.0.1", int(line.rpartition(":")[2])


def test_serve_ends_cleanly_when_told(pair: Pair) -> None:
    with started(*serve_arguments(pair)) as process:
        with closing(socket.create_connection(address_of(process))):
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=20)
        assert process.returncode == ExitCode.OK and "Traceback" not in err


def test_a_child_that_fails_while_its_standard_input_is_open_says_so_with_its_code() -> None:
    arguments = ("serve", "--model", "/nowhere", "--port", "0", "--until-stdin-closes")
    with started(*arguments, stdin=subprocess.PIPE) as process:
        assert process.stderr is not None
        err = process.stderr.read()  # its end; standard input is still open then
        assert process.wait(20) == ExitCode.CONFIGURATION
    assert "/nowhere is not a folder" in err and "Fatal" not in err


def test_a_port_in_use_is_one_clear_error(cli: Cli, pair: Pair) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = str(listener.getsockname()[1])
        ran = cli("serve", "--model", str(pair.drafter), "--port", port)
    assert ran.code == ExitCode.UNAVAILABLE
    assert port in ran.err and ran.err.count("\n") == 1


def test_serve_outlives_a_generate_that_is_interrupted_and_ends_on_ctrl_c(pair: Pair) -> None:
    with started(*serve_arguments(pair)) as drafter:
        host, port = address_of(drafter)
        arguments = ("--drafter", f"{host}:{port}", "--max-tokens", "100", "--threads", "1")
        begin = ("generate", "--target", str(pair.target), "--prompt", "w3", *arguments)
        with started(*begin, "--temperature", "3", "--deadline-ms", "60000") as process:
            assert process.stdout is not None and process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
            assert process.returncode in (ExitCode.INTERRUPTED, ExitCode.OK)
            assert "Traceback" not in err
        assert drafter.poll() is None
        drafter.send_signal(signal.SIGINT)
        _, err = drafter.communicate(timeout=20)
        assert drafter.returncode == ExitCode.OK and "Traceback" not in err
