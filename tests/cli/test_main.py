"""The frame of the command line: lazy commands, one line an error, exit codes."""

from __future__ import annotations

import errno
import resource
import statistics
import subprocess
import sys

import click
import pytest

from draftwire import __version__
from draftwire.cli import main
from draftwire.errors import (
    ArithmeticRefusalError,
    ConfigurationError,
    DrafterUnavailableError,
    ExitCode,
    ModelError,
    PairMismatchError,
    ProtocolError,
    ProtocolErrorCode,
    RefusalCode,
    TransportError,
)
from tests.cli.conftest import Cli

HEAVY = ("numpy", "torch", "numba", "transformers", "tokenizers", "rich")


def seconds_of(*arguments: str, runs: int = 7) -> float:
    """Median CPU time of Python with these arguments: it waits for nothing, so it takes no longer.

    Wall-clock time would measure what else the machine does.
    """
    times = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times)


@pytest.mark.parametrize(
    "arguments",
    [("-c", "import draftwire"), ("-m", "draftwire", "--help"), ("-m", "draftwire", "--version")],
    ids=["import", "help", "version"],
)
def test_starts_within_three_tenths_of_a_second(arguments: tuple[str, ...]) -> None:
    # Python's own start is not ours.
    assert seconds_of(*arguments) - seconds_of("-c", "pass") < 0.3


@pytest.mark.parametrize(
    "code",
    [
        "import draftwire",
        "from draftwire.cli.main import run; run(['--help'])",
        "from draftwire.cli.main import run; run(['serve', '--help'])",
        "from draftwire.cli.main import run; run(['generate', '--help'])",
        "from draftwire.cli.main import run; run(['demo', '--help'])",
        "from draftwire.cli.main import run; run(['sizes'])",
    ],
)
def test_imports_nothing_heavy(code: str) -> None:
    check = f"{code}\nimport sys; print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_help_lists_every_command_with_its_own_short_help(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == ExitCode.OK
    group = main.cli
    assert isinstance(group, main.LazyGroup)
    for name in main.COMMANDS:
        assert f"  {name} " in ran.out
        command = group.get_command(click.Context(group), name)
        assert command is not None and command.name == name and command.help


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_of_each_command_teaches_by_example(cli: Cli, name: str) -> None:
    ran = cli(name, "--help")
    assert ran.code == ExitCode.OK
    assert f"draftwire {name}" in ran.out.split("Examples:")[1]


def test_no_arguments_is_help(cli: Cli) -> None:
    assert cli().out == cli("--help").out != ""


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"draftwire {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), ("--frobnicate",), ("sizes", "--frobnicate"), ("sizes", "extra")]
)
def test_unknown_words_are_refused_with_where_to_look(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli(*arguments)
    assert ran.code == ExitCode.USAGE
    assert ran.out == ""
    assert ran.err.startswith("draftwire: ") and ran.err.count("\n") == 1 and "--help" in ran.err


ERRORS = [
    (ConfigurationError("a\nb"), ExitCode.CONFIGURATION),
    (ModelError("m"), ExitCode.CONFIGURATION),
    (PairMismatchError("vocab_size", "m"), ExitCode.CONFIGURATION),
    (ProtocolError(ProtocolErrorCode.BAD_MAGIC, "m"), ExitCode.PROTOCOL),
    (DrafterUnavailableError("deadline", "m"), ExitCode.UNAVAILABLE),
    (TransportError("m"), ExitCode.UNAVAILABLE),
    (ArithmeticRefusalError(RefusalCode.ZERO_MASS, "m"), ExitCode.ARITHMETIC),
    (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    (click.Abort(), ExitCode.INTERRUPTED),
    (click.ClickException("m"), ExitCode.FAILURE),
    (OSError(errno.ENOSPC, "No space left on device"), ExitCode.FAILURE),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_each_error_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, error: BaseException, code: ExitCode
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: failing)
    ran = cli("sizes")
    assert ran.code == code
    assert ran.err.strip().count("\n") == 0 and ran.err.strip().startswith("draftwire: ")
    assert "Traceback" not in ran.err


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: failing)
    with pytest.raises(ZeroDivisionError):
        cli("sizes")


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    shell = f"{sys.executable} -m draftwire sizes | true"
    done = subprocess.run(["bash", "-c", shell], check=False, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("sizes", 0), ("--help", 0), ("sizes --batch 0", 2)])
def test_streams_that_are_closed_from_the_start_are_no_error(
    closed: str, words: str, code: int
) -> None:
    command = f'"{sys.executable}" -m draftwire {words} {closed}'
    assert subprocess.run(["sh", "-c", command], timeout=60).returncode == code
