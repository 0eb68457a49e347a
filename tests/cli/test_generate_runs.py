"""``draftwire generate`` on tiny models: text, JSON, drafters that are away, wrong or limited."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from draftwire.errors import ExitCode
from draftwire.transport.tcp import free_address
from draftwire.wire.registry import LayoutSet, WireVersion
from tests.cli.conftest import Cli, Pair, Ran, Serving

PROMPT = "w3 w7 w9"


@pytest.fixture(scope="module")
def address(serving: Serving) -> Iterator[str]:
    with serving() as listening:
        yield listening


@pytest.fixture
def generate(cli: Cli, pair: Pair) -> Cli:
    def call(*arguments: str) -> Ran:
        begin = ("generate", "--target", str(pair.target), "--prompt", PROMPT, "--threads", "1")
        return cli(*begin, "--max-tokens", "12", "--seed", "5", *arguments)

    return call


def found(ran: Ran) -> dict[str, Any]:
    assert ran.code == ExitCode.OK, ran.err
    parsed: dict[str, Any] = json.loads(ran.out)
    return parsed


@pytest.mark.parametrize("layout", ["dense", "sparse:8", "sparse:4096"])  # 48 ids in all
def test_drafted_text_is_repeatable_and_reported(generate: Cli, address: str, layout: str) -> None:
    arguments = ("--drafter", address, "--layout", layout, "--depth", "3", "--json")
    first, second = found(generate(*arguments)), found(generate(*arguments))
    assert first["tokens"] == second["tokens"] and first["text"] == second["text"]
    report = first["report"]
    assert first["drafted"] and first["drafter"] == address
    assert report["drafted"] == report["verified"] + sum(report["discarded"].values())
    assert report["tokens"] == len(first["tokens"]) <= 12
    assert report["misses"] == {}
    figures = report["speculative_decoding"]  # the names that tools read of vLLM's answers
    assert figures["num_accepted_draft_tokens"] == report["accepted"]
    assert sum(figures["acceptance_histogram"]) == figures["num_spec_steps"]


def test_the_text_is_streamed_to_stdout_and_the_report_to_stderr(
    generate: Cli, address: str
) -> None:
    ran = generate("--drafter", address)
    whole = found(generate("--drafter", address, "--json"))
    assert ran.out == whole["text"] + "\n"
    for said in ("tokens per target pass", "acceptance by position", "bytes per position"):
        assert said in ran.err
    assert "tokens/s" in ran.err


def test_greedy_text_is_the_same_with_v2_v1_and_without_a_drafter(
    generate: Cli, address: str, serving: Serving
) -> None:
    greedy = ("--temperature", "0", "--json")
    alone = found(generate(*greedy))
    v2 = found(generate(*greedy, "--drafter", address))
    with serving(version=WireVersion.V1, layouts=LayoutSet.IDS_ONLY) as old:
        v1 = found(generate(*greedy, "--drafter", old, "--wire", "v1"))
    assert v1["drafted"] and v2["drafted"] and not alone["drafted"]
    assert v1["text"] == v2["text"] == alone["text"]


def test_without_the_audit(generate: Cli, address: str) -> None:
    arguments = ("--drafter", address, "--json")
    audited, plain = found(generate(*arguments)), found(generate(*arguments, "--no-audit"))
    assert audited["text"] == plain["text"]
    assert audited["report"]["seconds"]["audit"] > 0 == plain["report"]["seconds"]["audit"]


def test_a_stop_string_ends_the_text_before_it(generate: Cli, address: str) -> None:
    text = found(generate("--drafter", address, "--json"))["text"]
    stop = text.split()[3]
    arguments = ("--drafter", address, "--stop", f" {stop}")
    stopped = found(generate(*arguments, "--json"))
    assert stopped["text"] == text[: text.index(f" {stop}")]
    assert stopped["report"]["finish"] == "stop_string"
    assert generate(*arguments).out == stopped["text"] + "\n"


def test_the_drafter_away_is_a_target_only_run_that_says_so(generate: Cli) -> None:
    away = generate("--drafter", str(free_address()), "--json")
    assert away.err.count("going on with the target alone") == 1
    out, alone = found(away), found(generate("--json"))
    assert out["text"] == alone["text"]
    assert not out["drafted"] and out["drafter"] is not None
    assert out["report"]["target_only_rounds"] == out["report"]["rounds"] > 0
    assert sum(out["report"]["misses"].values()) > 0


@contextmanager
def answering(data: bytes | None) -> Iterator[str]:
    """Another program: accepts, says ``data`` (None: nothing at all) and keeps the line open."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        kept: list[socket.socket] = []

        def run() -> None:
            try:
                while True:
                    peer, _ = listener.accept()
                    kept.append(peer)
                    if data is not None:
                        peer.sendall(data)
            except OSError:
                return

        threading.Thread(target=run, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for peer in kept:
            peer.close()


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x80\x04\x95pickle-and-more"]
)
def test_x40_another_program_at_the_address_is_one_clear_error(generate: Cli, data: bytes) -> None:
    with answering(data) as address:
        ran = generate("--drafter", address)
    assert ran.code == ExitCode.PROTOCOL
    assert "another program" in ran.err and ran.err.count("\n") == 1 and ran.out == ""


def test_a_port_that_never_answers_is_a_drafter_away(generate: Cli) -> None:
    with answering(None) as address:
        ran = generate("--drafter", address)
    assert ran.code == ExitCode.OK and "going on with the target alone" in ran.err


def test_x43_a_drafter_of_another_tokenizer_is_refused_with_the_field(
    generate: Cli, serving: Serving, pair: Pair
) -> None:
    with serving(pair.stranger) as address:
        ran = generate("--drafter", address)
    assert ran.code == ExitCode.CONFIGURATION
    assert "tokenizer_hash differs" in ran.err and ran.err.count("\n") == 1


def test_another_wire_version_is_refused_with_what_to_do(generate: Cli, address: str) -> None:
    ran = generate("--drafter", address, "--wire", "v1", "--temperature", "0")
    assert ran.code == ExitCode.PROTOCOL
    assert "--wire" in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--depth", "5"), "--depth 5 is more than the drafter takes: use --depth 4"),
        (("--depth", "4", "--layout", "sparse:9"), "use sparse:8"),
        (("--depth", "4", "--layout", "dense"), "does not offer the dense layout"),
    ],
)
def test_limits_of_the_drafter_are_said_before_the_first_round(
    generate: Cli, serving: Serving, arguments: tuple[str, ...], says: str
) -> None:
    with serving(max_depth=4, max_support=8, layouts=LayoutSet.SPARSE) as address:
        ran = generate("--drafter", address, *arguments)
    assert ran.code == ExitCode.CONFIGURATION
    assert says in ran.err and ran.err.count("\n") == 1 and ran.out == ""


def test_a_folder_that_is_no_model(cli: Cli, tmp_path: Any) -> None:
    for command in ("generate", "serve"):
        option = "--target" if command == "generate" else "--model"
        begin = (command, option, str(tmp_path))
        ran = cli(*begin, *(("--prompt", "x") if command == "generate" else ()))
        assert ran.code == ExitCode.CONFIGURATION
        assert "config.json" in ran.err and ran.err.count("\n") == 1


def test_a_prompt_longer_than_the_context(cli: Cli, pair: Pair) -> None:
    ran = cli("generate", "--target", str(pair.target), "--prompt", "w3 " * 200)
    assert ran.code == ExitCode.CONFIGURATION and "context takes 128" in ran.err


def test_e51_a_text_that_outgrows_the_drafters_context_goes_on_and_says_so_once(
    generate: Cli, serving: Serving
) -> None:
    with serving(max_context=8) as address:
        ran = generate("--drafter", address, "--depth", "3", "--json")
    out = found(ran)
    assert out["report"]["tokens"] == 12
    assert ran.err.count("context is full") == 1
