"""``draftwire generate``: what is refused before a model is read, and what the defaults are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from draftwire.cli import generate as module
from draftwire.cli.generate import default_draft_temperature
from draftwire.cli.generation import GenerateOptions
from draftwire.cli.options import LayoutChoice
from draftwire.errors import ExitCode
from draftwire.transport.tcp import Address
from draftwire.wire.registry import MIN_TEMPERATURE, Layout, WireVersion
from tests.cli.conftest import Cli

DRAFTER = ("--drafter", "127.0.0.1:7711")

REFUSED = [
    (("--temperature", "0", "--top-p", "0.9"), "--top-p to do: drop it"),
    (("--temperature", "0", "--top-k", "5", "--min-p", "0.1"), "--top-k, --min-p to do: drop them"),
    ((*DRAFTER, "--wire", "v1"), "--temperature 0"),
    ((*DRAFTER, "--wire", "v1", "--temperature", "0", "--layout", "dense"), "drop one of them"),
    ((*DRAFTER, "--wire", "v1", "--temperature", "0", "--draft-temperature", "1"), "drop"),
    ((*DRAFTER, "--layout", "sparse:0"), "at least 1"),
    ((*DRAFTER, "--layout", "sparse:x"), "sparse:32"),
    ((*DRAFTER, "--layout", "sparse:-1"), "sparse:32"),
    ((*DRAFTER, "--depth", "0"), "1<=x<=64"),
    ((*DRAFTER, "--depth", "65"), "1<=x<=64"),
    ((*DRAFTER, "--deadline-ms", "0"), "above 0"),
    ((*DRAFTER, "--deadline-ms", "inf"), "finite"),
    ((*DRAFTER, "--draft-temperature", "0"), "at least"),
    (("--depth", "3"), "add --drafter"),
    (("--layout", "dense", "--no-audit"), "--layout, --no-audit shape the drafting"),
    (("--wire", "v2"), "add --drafter"),
    (("--drafter", "nowhere"), "127.0.0.1:7711"),
    (("--drafter", ":7711"), "127.0.0.1:7711"),
    (("--drafter", "::1:7711"), "brackets: [::1]:7711"),
    (("--drafter", "box:0"), "port 0 is for serve alone"),
    (("--drafter", "box:http"), "is no HOST:PORT"),
    (("--temperature", "-0.1"), "at least 0"),
    (("--temperature", "nan"), "finite"),
    (("--temperature", "inf"), "finite"),
    (("--temperature", "hot"), "not a number"),
    (("--top-p", "0"), "above 0"),
    (("--top-p", "1.5"), "at most 1"),
    (("--top-k", "-1"), "--top-k"),
    (("--min-p", "1.1"), "at most 1"),
    (("--repetition-penalty", "0"), "above 0"),
    (("--seed", "-1"), "--seed"),
    (("--seed", str(1 << 128)), "--seed"),
    (("--max-tokens", "0"), "--max-tokens"),
    (("--threads", str(1 << 40)), "--threads"),
    (("--stop", ""), "not empty"),
    (("--file", "also.txt"), "keep one of them"),
    (("--frobnicate",), "--frobnicate"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=lambda value: " ".join(value))
def test_refused_with_what_to_do(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    ran = cli("generate", "--prompt", "x", *arguments)
    assert ran.code == ExitCode.USAGE
    assert says in ran.err and ran.err.count("\n") == 1 and ran.out == ""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[GenerateOptions]:
    """Collect the options that would be run."""
    import draftwire.cli.generation as generating

    options: list[GenerateOptions] = []
    monkeypatch.setattr(generating, "generate_and_print", options.append)
    return options


def test_the_prompt_comes_from_one_named_source(
    cli: Cli, asked: list[GenerateOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("from a file: ü\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", piped(b"from a pipe"))
    for arguments in (("--prompt", "as said"), ("--file", str(file)), ()):
        assert cli("generate", *arguments).code == ExitCode.OK
    assert [options.prompt.text for options in asked] == [
        "as said",
        "from a file: ü\n",
        "from a pipe",
    ]


def piped(raw: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(raw), encoding="ascii")


def test_a_prompt_is_taken_to_the_letter_whatever_the_locale(
    cli: Cli, asked: list[GenerateOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = "é\r\nü\n".encode()
    file = tmp_path / "prompt.txt"
    file.write_bytes(raw)
    monkeypatch.setattr("sys.stdin", piped(raw))
    for arguments in (("--file", str(file)), ()):
        assert cli("generate", *arguments).code == ExitCode.OK
    assert [options.prompt.text for options in asked] == [raw.decode()] * 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        ((), Terminal(), "no prompt: add --prompt"),
        ((), piped(b""), "standard input is empty"),
        ((), piped(b"\xff\xfe\x00"), "standard input is not UTF-8"),
        ((), None, "no prompt: add --prompt"),
        (("--prompt", "caf\udce9"), None, "not UTF-8"),
        (("--prompt", "x", "--stop", "\udcff"), None, "not UTF-8"),
        (("--prompt", ""), Terminal(), "--prompt is empty"),
        (("--file", "/does/not/exist"), Terminal(), "No such file"),
        (("--file", "/"), Terminal(), "Is a directory"),
        (("--file", "/dev/zero"), Terminal(), "more than 16 MiB"),
    ],
)
def test_a_missing_prompt_is_a_usage_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], stdin: Any, says: str
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    ran = cli("generate", *arguments)
    assert ran.code == ExitCode.USAGE and says in ran.err


def test_a_file_that_is_no_text_is_a_usage_error(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    ran = cli("generate", "--file", str(file))
    assert ran.code == ExitCode.USAGE and "not UTF-8" in ran.err


def test_the_defaults(cli: Cli, asked: list[GenerateOptions]) -> None:
    cli("generate", "--prompt", "x", *DRAFTER)
    (options,) = asked
    assert options.drafter == Address("127.0.0.1", 7711)
    assert (options.temperature, options.draft_temperature) == (1.0, 1.0)
    assert options.layout == LayoutChoice(Layout.SPARSE, 32)
    assert options.wire is WireVersion.V2 and options.audit and options.seed is None


def test_v1_is_greedy_ids_only(cli: Cli, asked: list[GenerateOptions]) -> None:
    cli("generate", "--prompt", "x", *DRAFTER, "--wire", "v1", "--temperature", "0")
    (options,) = asked
    assert options.layout == LayoutChoice(Layout.IDS_ONLY, 0)
    assert options.draft_temperature == 0


def test_an_ipv6_drafter(cli: Cli, asked: list[GenerateOptions]) -> None:
    cli("generate", "--prompt", "x", "--drafter", "[::1]:7711")
    assert asked[0].drafter == Address("::1", 7711)


@pytest.mark.parametrize(
    ("temperature", "draft"), [(0.0, 0.0), (1e-9, MIN_TEMPERATURE), (0.7, 0.7), (1e9, 2.0**14)]
)
def test_the_draft_temperature_follows_inside_its_range(temperature: float, draft: float) -> None:
    assert default_draft_temperature(temperature) == draft
    assert module.default_draft_temperature is default_draft_temperature
