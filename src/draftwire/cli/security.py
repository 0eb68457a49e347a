"""Options that say how two machines know one another, the same for both commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from draftwire.cli.options import flag
from draftwire.errors import ConfigurationError
from draftwire.transport.security import SECURITY, Security, contradiction, security_of
from draftwire.transport.tls import parse_fingerprint

Command = TypeVar("Command", bound=Callable[..., Any])


class FingerprintType(click.ParamType[bytes]):
    """SHA-256 of a certificate: 64 hexadecimal digits, with or without colons."""

    name = "SHA256"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Read the digits."""
        if isinstance(value, bytes):
            return value
        try:
            return parse_fingerprint(str(value))
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


def security_options(peer: str) -> Callable[[Command], Command]:
    """Return the decorator that adds the options to a command; peer: whom it is about."""
    file = click.Path(path_type=Path)
    options = (
        click.option(
            "--psk-file",
            type=file,
            metavar="FILE",
            help=f"Key that {peer} has too (draftwire keygen): proves both ends, hides nothing.",
        ),
        click.option("--tls-cert", type=file, metavar="FILE", help="Mutual TLS: own certificate."),
        click.option("--tls-key", type=file, metavar="FILE", help="Mutual TLS: its key."),
        click.option(
            "--tls-ca",
            type=file,
            metavar="FILE",
            help=f"Mutual TLS: authority, or certificate, of {peer}.",
        ),
        click.option(
            "--tls-fingerprint",
            type=FingerprintType(),
            multiple=True,
            metavar="SHA256",
            help=f"Mutual TLS: the only certificates of {peer} that are taken; may be repeated.",
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def take_security(values: dict[str, Any]) -> Security | None:
    """Take the options out of ``values`` and return what they say; None if they say nothing.

    Raises click.UsageError for a combination that cannot hold, ConfigurationError for a file.
    """
    taken = {name: values.pop(name) for name in SECURITY}
    wrong = contradiction(taken, flag)
    if wrong is not None:
        raise click.UsageError(wrong)
    return security_of(taken)
