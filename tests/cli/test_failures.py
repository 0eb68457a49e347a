"""A target whose library fails in the middle of a text: one sentence, a code, and the text kept."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from draftwire.errors import ExitCode
from tests.cli.conftest import Cli, Pair, Serving

WHOLE = 12
TARGET_LAYERS = 2  # of the tiny target; its drafter has one


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let every target fail after so many passes as the list says."""
    from transformers import LlamaForCausalLM

    from draftwire.engines.hf import HfTargetEngine

    scoring, forwarding, left = HfTargetEngine.score, LlamaForCausalLM.forward, [1 << 30]

    def score(self: Any, *arguments: Any) -> Any:
        left[0] -= 1
        return scoring(self, *arguments)

    @functools.wraps(forwarding)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        if left[0] < 0 and self.config.num_hidden_layers == TARGET_LAYERS:
            raise MemoryError("CUDA out of memory\nand pages of advice")
        return forwarding(self, *arguments, **options)

    monkeypatch.setattr(HfTargetEngine, "score", score)
    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    yield left


def test_the_text_so_far_is_kept(cli: Cli, pair: Pair, failing: list[int]) -> None:
    """Case M35."""
    start = ("generate", "--target", str(pair.target), "--threads", "1", "--seed", "5")
    start += ("--prompt", "w3 w7 w9", "--max-tokens", str(WHOLE))
    whole = json.loads(cli(*start, "--json").out)
    assert len(whole["tokens"]) > 4
    failing[0] = 4
    ran = cli(*start)
    assert ran.code == ExitCode.FAILURE and "Traceback" not in ran.err
    assert ran.err.startswith("draftwire: MemoryError: CUDA out of memory (DRAFTWIRE_TRACEBACK=1")
    assert ran.err.count("\n") == 1
    shown = ran.out.rstrip("\n")
    assert shown.split() and whole["text"].startswith(shown) and shown != whole["text"]
    failing[0] = 4
    ran = cli(*start, "--json")
    found = json.loads(ran.out)
    assert ran.code == ExitCode.FAILURE
    assert found["tokens"] == whole["tokens"][:4] and found["text"] == shown
    assert found["error"] == "MemoryError: CUDA out of memory"
    assert "error" not in whole


def test_where_it_was_is_shown_on_request(
    cli: Cli, pair: Pair, failing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWIRE_TRACEBACK", "1")
    failing[0] = 0
    ran = cli("generate", "--target", str(pair.target), "--prompt", "w3", "--threads", "1")
    assert ran.code == ExitCode.FAILURE and "Traceback" in ran.err and "score" in ran.err


def test_the_drafter_goes_on_when_a_target_fails(
    cli: Cli, pair: Pair, failing: list[int], serving: Serving
) -> None:
    """Case M35: nothing is left open at the drafter, and doctor says the same sentence."""
    start = ("generate", "--target", str(pair.target), "--threads", "1", "--seed", "5")
    start += ("--prompt", "w3 w7 w9", "--max-tokens", "24", "--json", "--no-breaker", "--drafter")
    with serving(max_sessions=1) as address:
        for _ in range(3):
            failing[0] = 3
            ran = cli(*start, address)
            assert ran.code == ExitCode.FAILURE
            assert json.loads(ran.out)["report"]["drafted_rounds"] >= 2
        failing[0] = 1 << 30
        ran = cli(*start, address)
        report = json.loads(ran.out)["report"]
        assert ran.code == ExitCode.OK and report["verified"] > 0 and report["misses"] == {}
        failing[0] = 5
        ran = cli("doctor", address, "--target", str(pair.target), "--prompt", "w3", "--json")
    assert ran.code == ExitCode.FAILURE
    assert json.loads(ran.out)["error"] == "MemoryError: CUDA out of memory"
    assert ran.err.splitlines()[-1].startswith("draftwire: MemoryError: CUDA out of memory (")
