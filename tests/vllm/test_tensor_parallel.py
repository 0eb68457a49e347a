"""Two ranks of tensor parallelism on the CPU: one asks and decides, both go on alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from draftwire.transport.tcp import free_address
from tests.vllm.models import tiny_folder
from tests.vllm.servers import environment, start_drafter


def test_t34_two_ranks_give_the_texts_of_one(tiny: Path, tmp_path: Path) -> None:
    """A rank that took other tokens than its neighbour would compute another text from there on."""
    port = free_address().port
    drafter = start_drafter(tiny_folder(tmp_path / "drafter", seed=2), port)
    try:
        command = [sys.executable, "-m", "tests.vllm.two_ranks", str(tiny), f"127.0.0.1:{port}"]
        setting = {**environment(), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        done = subprocess.run(command, capture_output=True, text=True, env=setting, timeout=900)
    finally:
        drafter.kill()
        drafter.wait()
    assert done.returncode == 0, done.stderr[-3000:]
    two, one = json.loads(done.stdout.splitlines()[-1])
    assert two["texts"] == one["texts"]
    assert two["accepted"] == one["accepted"] > 0
