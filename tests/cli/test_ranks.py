"""A model over ranks from the command line: what is refused, and one run of real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from draftwire.errors import ExitCode
from tests.cli.conftest import Cli, Pair, Serving

REFUSED = [
    ("generate", "--rank 1", "add --ranks N"),
    ("generate", "--ownership requests", "add --ranks N"),
    ("generate", "--rank-link 127.0.0.1:1", "add --ranks N"),
    ("serve", "--rank-links", "add --ranks N"),
    ("serve", "--ranks 2 --rank 1", "--rank and --rendezvous belong together"),
    ("serve", "--ranks 2 --rank 2 --rendezvous 127.0.0.1:1", "they are 0 to 1"),
    ("serve", "--ranks 2 --wire v1", "needs --wire v2"),
    ("generate", "--ranks 2 --kernels torch", "share a vocabulary compute on their shards"),
    ("serve", "--ranks 2 --kernels torch", "share a vocabulary compute on their shards"),
    ("serve", "--ranks 2 --device cuda", "runs on CPUs from the command line"),
    ("generate", "--ranks 2 --rank-link 127.0.0.1:1", "name one a rank"),
    ("generate", "--ranks 1 --rank-link 127.0.0.1:1 --rank-link 127.0.0.1:2", "add --ranks N"),
    (
        "generate",
        "--ranks 2 --drafter 127.0.0.1:1 --rank-link 127.0.0.1:1 --rank-link 127.0.0.1:2",
        "both name a drafter",
    ),
]


@pytest.mark.parametrize(("command", "options", "said"), REFUSED)
def test_options_that_cannot_hold_are_refused(
    cli: Cli, command: str, options: str, said: str
) -> None:
    prompt = ("--prompt", "x") if command == "generate" else ()
    ran = cli(command, *options.split(), *prompt)
    assert ran.code == ExitCode.USAGE and said in ran.err


def two_free_ports() -> int:
    """A free port whose next one is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_serve_and_generate_over_ranks_write_what_one_process_writes(
    cli: Cli, pair: Pair, serving: Serving
) -> None:
    """Four processes and two links; a rank that is killed ends the drafter, with a reason."""
    request = ["--target", str(pair.target), "--prompt", "t1 t2", "--max-tokens", "12", "--json"]
    request += ["--seed", "5", "--deadline-ms", "30000", "--top-k", "9"]
    command = [sys.executable, "-m", "draftwire"]
    with serving() as address:
        alone = json.loads(cli("generate", *request, "--drafter", address).out)
        # A request that one rank owns, asked for on that rank's link.
        owned = [*request, "--ranks", "2", "--ownership", "requests", *["--rank-link", address] * 2]
        owned += ["--kernels", "torch"]  # of whole rows, by their owner
        found = json.loads(run(command, owned)[0])
        assert found["tokens"] == alone["tokens"] and found["report"]["misses"] == {}
        assert found["report"]["accepted"] == alone["report"]["accepted"]
        out, err = run(command, [*owned, "--breaker", "--metrics-port", "0"])
        assert json.loads(out)["report"]["misses"]["baseline"] > 0  # the breaker's
        assert "metrics on http://" in err
    port = two_free_ports()
    serve = ["serve", "--model", str(pair.drafter), "--ranks", "2", "--rank-links"]
    with subprocess.Popen(
        [*command, *serve, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as drafter:
        try:
            assert drafter.stdout is not None and drafter.stderr is not None
            said = sorted(drafter.stdout.readline() for _ in range(2))
            assert said == [
                f"rank {rank} listening on 127.0.0.1:{port + rank}\n" for rank in range(2)
            ]
            links = [f"--rank-link=127.0.0.1:{port + rank}" for rank in range(2)]
            found = json.loads(run(command, [*request, "--ranks", "2", *links])[0])
            assert found["tokens"] == alone["tokens"] and found["report"]["misses"] == {}
            for child in children(drafter.pid):
                os.kill(child, signal.SIGKILL)
            assert drafter.wait(60) == ExitCode.UNAVAILABLE
            assert "rank 1 has ended" in drafter.stderr.read()
        finally:
            drafter.kill()


def run(command: list[str], options: list[str]) -> tuple[str, str]:
    """What ``generate`` prints, and what it says beside that."""
    ran = subprocess.run(
        [*command, "generate", *options],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, ran.stderr


def children(process: int) -> list[int]:
    """The processes that one has started."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(each) for task in tasks for each in (task / "children").read_text().split()]
