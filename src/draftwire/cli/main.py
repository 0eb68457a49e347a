"""The ``draftwire`` command: finds the sub-command, runs it, turns errors into exit codes.

A sub-command's module is imported when it is asked for and not before, so that ``--help`` stays
quick; the short help of each stands here for the same reason.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from traceback import print_exc, walk_tb
from typing import NoReturn

import click

from draftwire import __version__
from draftwire.errors import DraftwireError, ExitCode

TRACEBACK = "DRAFTWIRE_TRACEBACK"

COMMANDS = {
    "demo": "Both programs here, with the embedded pair: what it looks like and brings.",
    "serve": "The drafter: propose tokens to verifiers that connect.",
    "generate": "The verifier: generate text with a target, drafted for elsewhere.",
    "doctor": "Whether a drafter is of use to a target, and what to change if not.",
    "keygen": "A new key that lets two machines know one another.",
    "sizes": "Bytes and link time of a configuration, and whether the negotiated limits carry it.",
    "qualify": "How far kernels are from the exact arithmetic, measured.",
    "conform": "Check vectors (JSON lines) against this implementation.",
}

EPILOG = """\b
Try:
  draftwire demo
  draftwire serve --model ./small-model --port 7711
  draftwire generate --target ./big-model --drafter 127.0.0.1:7711 --prompt "def main("

\b
Exit codes: 0 done, 1 failure, 2 usage, 3 configuration, 4 protocol, 5 unavailable,
6 arithmetic refused, 7 vectors not conforming, 130 interrupted.
"""


class LazyGroup(click.Group):
    """A group whose commands are imported on use; ``draftwire.cli.NAME`` holds command ``NAME``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order that they are taught in."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"draftwire.cli.{cmd_name}"), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"draftwire.cli.{cmd_name}.{cmd_name} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="draftwire", message="%(prog)s %(version)s")
def cli() -> None:
    """Lossless remote speculative decoding.

    A small drafter on one machine proposes tokens together with the exact distribution each was
    drawn from; a large target on another verifies them in one pass. The text has exactly the law of
    the target alone.
    """


def failure(error: Exception) -> str:
    """Return the one sentence of an error: ours, or the first line of a library's with its type."""
    if isinstance(error, DraftwireError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _raised_by_a_model(error: Exception) -> bool:
    """Whether an error came out of an engine: of a model's library, a device, a file of weights."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    ours = [name for name in frames if name.startswith("draftwire.")]
    return bool(ours) and ours[-1].startswith("draftwire.engines.")


def complain(message: str) -> None:
    """Write one line to stderr, whatever line breaks and undecoded bytes the message holds."""
    said = " ".join(message.split()).encode(errors="backslashreplace").decode()
    click.echo(f"draftwire: {said}", err=True)


def run(arguments: Sequence[str] | None = None) -> ExitCode | int:
    """Run the command line and return its exit code; every deliberate error becomes one line."""
    args = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        result = cli.main(args=args, prog_name="draftwire", standalone_mode=False)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "draftwire"
        complain(f"{error.format_message()} (see {where} --help)")
        return ExitCode.USAGE
    except click.ClickException as error:
        complain(error.format_message())
        return ExitCode.FAILURE
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return ExitCode.INTERRUPTED
    except DraftwireError as error:
        complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): there is no report to make.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except OSError as error:
        complain(str(error))
        return ExitCode.FAILURE
    except Exception as error:
        if not _raised_by_a_model(error):
            raise  # a fault of this program, whose traceback is wanted
        if os.environ.get(TRACEBACK):
            print_exc()
        complain(f"{failure(error)} ({TRACEBACK}=1 in the environment shows where)")
        return ExitCode.FAILURE
    return result if isinstance(result, int) else ExitCode.OK


def main() -> NoReturn:
    """Entry point of the ``draftwire`` script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process (`>&-`)
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A text may hold characters that this terminal cannot show; that is no reason to end.
            stream.reconfigure(errors="replace")
    sys.exit(int(run()))
