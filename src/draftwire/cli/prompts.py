"""Where a command's prompt comes from: an option, a file, standard input, or a chat."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import click

from draftwire.cli.options import Text, utf8
from draftwire.errors import ConfigurationError
from draftwire.text.prompt import Message, chat, parse_messages

Command = TypeVar("Command", bound=Callable[..., Any])

MOST_PROMPT_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a text stands behind. messages: of a chat, which the template writes; () = the text."""

    text: str
    messages: tuple[Message, ...] = ()


def chat_options(command: Command) -> Command:
    """Add the options that make a chat of a prompt."""
    for option in (
        click.option("--system", type=Text(), help="With --chat: the system message before it."),
        click.option(
            "--chat",
            is_flag=True,
            help="The prompt is a user's message, written by the target's own chat template.",
        ),
    ):
        command = option(command)
    return command


def take_chat(values: dict[str, Any], text: str) -> Prompt:
    """Take --chat and --system out of ``values``. Raises click.UsageError."""
    wanted, system = values.pop("chat"), values.pop("system")
    if system is not None and not wanted:
        raise click.UsageError("--system is a message of a chat: add --chat")
    return Prompt(text, tuple(chat(text, system)) if wanted else ())


def take_prompt(values: dict[str, Any]) -> Prompt:
    """Take the options out of ``values`` and read the prompt. Raises click.UsageError."""
    prompt, file, messages = (values.pop(name) for name in ("prompt", "file", "messages"))
    if messages is None:
        return take_chat(values, read_prompt(prompt, file))
    others = {"prompt": prompt is not None, "file": file is not None}
    others |= {"chat": values.pop("chat"), "system": values.pop("system") is not None}
    both = [f"--{name}" for name, written in others.items() if written]
    if both:
        raise click.UsageError(f"--messages is a whole chat: drop it, or {', '.join(both)}")
    return Prompt("", tuple(_read_messages(messages)))


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the prompt from the one source that was named, or from a piped standard input."""
    if prompt is not None and file is not None:
        raise click.UsageError("--prompt and --file both name a prompt: keep one of them")
    if prompt is None and file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError('no prompt: add --prompt "TEXT" or --file PATH, or pipe one in')
    if prompt is not None:
        text, source = prompt, "--prompt"
    elif file is not None:
        text, source = _read_file(file, "--file"), str(file)
    else:
        text, source = _read_whole(sys.stdin.buffer, "standard input"), "standard input"
    if not text:
        raise click.UsageError(
            f"the prompt from {source} is empty: it needs at least one character"
        )
    return text


def _read_messages(file: Path) -> list[Message]:
    source = f"--messages {file}"
    if str(file) == "-":
        if sys.stdin is None:
            raise click.UsageError(f"{source} is standard input, and that is closed")
        text = _read_whole(sys.stdin.buffer, source)
    else:
        text = _read_file(file, "--messages")
    try:
        return parse_messages(text)
    except ConfigurationError as error:
        raise click.UsageError(f"{source}: {error}") from error


def _read_file(file: Path, option: str) -> str:
    try:
        with file.open("rb") as opened:
            return _read_whole(opened, f"{option} {file}")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise click.UsageError(f"{option} {file} cannot be read: {reason}") from error


def _read_whole(opened: BinaryIO, source: str) -> str:
    """Return the text of a file that may have no end; more than any context takes is refused."""
    raw = opened.read(MOST_PROMPT_BYTES + 1)
    if len(raw) > MOST_PROMPT_BYTES:
        raise click.UsageError(
            f"the prompt from {source} has more than {MOST_PROMPT_BYTES >> 20} MiB: shorten it"
        )
    return utf8(raw, source)
