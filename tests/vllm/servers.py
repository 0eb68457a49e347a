"""``draftwire serve`` and ``vllm serve`` as a user starts them: processes, flags, ports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwire.engines.vllm.config import PROPOSER, WORKER

START_SECONDS = 600
COMMAND = Path(__file__).with_name("vllm_command.py")


def start_drafter(
    folder: Path, port: int, *arguments: str, sessions: int = 32
) -> subprocess.Popen[str]:
    """Start a drafter and wait until it listens."""
    command = [sys.executable, "-m", "draftwire", "serve", "--until-stdin-closes"]
    command += ["--model", str(folder), "--port", str(port), "--threads", "1"]
    command += ["--max-sessions", str(sessions), *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert str(port) in line, line
    return process


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }


def flags(
    drafter_port: int, *, depth: int = 5, deadline_ms: float = 5000, **more: Any
) -> list[str]:
    """What a user adds to ``vllm serve``."""
    speculative = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": depth}
    options = {"address": f"127.0.0.1:{drafter_port}", "deadline_ms": deadline_ms, **more}
    return [
        "--speculative-config",
        json.dumps(speculative),
        "--worker-cls",
        WORKER,
        "--additional-config",
        json.dumps({"draftwire": options}),
    ]


@contextmanager
def vllm_serve(folder: Path, port: int, arguments: Sequence[str], log: Path) -> Iterator[str]:
    """Run ``vllm serve`` and yield its URL once it answers."""
    command = [sys.executable, str(COMMAND), "serve", str(folder)]
    command += ["--served-model-name", "target", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16"]
    command += ["--max-model-len", "512", "--generation-config", "vllm", *arguments]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment())
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"vllm serve did not answer within {START_SECONDS} s")


def metrics(url: str) -> dict[str, float]:
    """The samples of /metrics whose names begin with draftwire or vllm:spec_decode."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith(("draftwire:", "vllm:spec_decode")):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def total(samples: dict[str, float], name: str) -> float:
    """The sum of a name over its labels."""
    return sum(value for key, value in samples.items() if key.partition("{")[0] == name)
