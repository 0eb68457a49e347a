"""Every option of every command with values that nobody should give: one sentence, or it works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import click
import pytest

from draftwire.cli.main import COMMANDS, cli
from draftwire.errors import ExitCode
from tests.cli.conftest import Cli, Pair, Serving

NASTY = ["", " ", "nan", "inf", "-inf", "-1", "0", "1e400", "9" * 400, "0x10", "1_0", "½", "٣", "x"]
NASTY += ["\udcff", "a\nb", "--", "🙂" * 300, "1e-400", "true", "None", "[]", "%s", "../..", "1,2"]

NEEDED = {
    "generate": ["--prompt", "x"],
    "doctor": ["127.0.0.1:7711"],
    "qualify": ["--kernels", "cpu"],
    "keygen": ["/dev/null/key"],
    "conform": ["/dev/null"],
}


def options() -> Iterator[tuple[str, click.Option]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.is_flag:
                yield name, parameter


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse and check everything, and then do nothing."""
    import draftwire.cli.demonstration as demonstration
    import draftwire.cli.examination as examination
    import draftwire.cli.generation as generation
    import draftwire.cli.qualify as qualify
    import draftwire.cli.server as server

    def nothing(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(demonstration, "show", nothing)
    monkeypatch.setattr(examination, "examine_and_print", nothing)
    monkeypatch.setattr(generation, "generate_and_print", nothing)
    monkeypatch.setattr(server, "serve_until_told", nothing)
    monkeypatch.setattr(qualify, "sample_rows", lambda *_: iter(()))


@pytest.mark.parametrize(
    ("command", "option"),
    [pytest.param(name, option, id=f"{name} {option.opts[0]}") for name, option in options()],
)
def test_each_value_works_or_is_refused_in_one_sentence(
    cli: Cli, idle: None, command: str, option: click.Option
) -> None:
    """Cases M33 and M34: what is refused is refused before anything is loaded, with code 2 or 3."""
    for value in NASTY:
        for arguments in ((f"{option.opts[0]}={value}",), (option.opts[0], value)):
            ran = cli(command, *NEEDED.get(command, []), *arguments)
            where = f"{arguments}: {ran}"
            assert ran.code in (ExitCode.OK, ExitCode.USAGE, ExitCode.CONFIGURATION), where
            if ran.code != ExitCode.OK:
                assert ran.err.startswith("draftwire: ") and ran.err.count("\n") == 1, where
                assert len(ran.err) < 1_000, where


def test_the_walk_is_over_all_commands() -> None:
    walked = [name for name, _ in options()]
    assert set(walked) == set(COMMANDS) - {"keygen", "conform"}  # they have no option with a value
    assert len(walked) > 90


EXTREME = [
    ("--temperature", "1e308"),
    ("--temperature", "1e-300"),
    ("--temperature", "1e-30"),
    ("--temperature", "1e-400"),
    ("--top-p", "1e-300"),
    ("--top-k", "9" * 300),
    ("--min-p", "1"),
    ("--min-p", "1e-300"),
    ("--repetition-penalty", "1e308"),
    ("--repetition-penalty", "1e-300"),
    ("--seed", "0"),
    ("--seed", str((1 << 128) - 1)),
    ("--max-tokens", "9" * 300),
    ("--stop", "🙂" * 3_000),
    ("--stop", "\n"),
    ("--device", ""),
    ("--device", "x"),
    ("--device", "🙂"),
    ("--device", "cpu:7"),
    ("--device", "meta"),
    ("--device", "cuda:" + "9" * 30),
    ("--target", ""),
    ("--target", "🙂" * 300),
    ("--drafter", "🙂:7711"),
    ("--drafter", "." * 300 + ":7711"),
    ("--deadline-ms", "1e12", "--drafter"),
    ("--deadline-ms", "1e-300", "--drafter"),
    ("--layout", "sparse:1048576", "--drafter"),
    ("--draft-temperature", "1e-3", "--drafter"),
    ("--depth", "8", "--drafter"),
    ("--rank-patience", "1e9", "--drafter"),
]


@pytest.mark.parametrize("arguments", EXTREME, ids=lambda value: " ".join(value)[:40])
def test_extremes_that_may_be_given_end_in_a_text_or_in_one_sentence(
    cli: Cli, pair: Pair, serving: Serving, arguments: tuple[str, ...]
) -> None:
    """Case M34: what the command line takes is run to its end."""
    begin = ["generate", "--target", str(pair.target), "--prompt", "w3", "--threads", "1"]
    begin += ["--max-tokens", "6", "--seed", "4"]
    with serving() if arguments[-1] == "--drafter" else nullcontext("") as address:
        ran = cli(*begin, *arguments, *filter(None, [address]))
    assert "Traceback" not in ran.err
    if ran.code == ExitCode.OK:
        assert ran.out
    else:
        # The last: a penalty that makes scores infinite, which is seen once there is a score.
        allowed = (ExitCode.USAGE, ExitCode.CONFIGURATION, ExitCode.ARITHMETIC)
        assert ran.code in allowed, ran
        assert ran.err.startswith("draftwire: ") and ran.err.count("\n") == 1, ran
