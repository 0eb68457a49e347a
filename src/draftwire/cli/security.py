"""Options that say how two machines know one another, the same for both commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from draftwire.cli.options import flag

if TYPE_CHECKING:
    from draftwire.transport.security import Security

SECURITY = ("psk_file", "tls_cert", "tls_key", "tls_ca", "tls_fingerprint")
"""The options' names, as click passes them."""

_TLS_FILES = ("tls_cert", "tls_key", "tls_ca")

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
            fingerprint = bytes.fromhex(str(value).replace(":", ""))
        except ValueError:
            fingerprint = b""
        if len(fingerprint) != 32:
            self.fail(
                "a fingerprint is 64 hexadecimal digits, as openssl x509 -noout -fingerprint"
                " -sha256 -in FILE prints them",
                param,
                ctx,
            )
        return fingerprint


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
    key, fingerprints = taken["psk_file"], taken["tls_fingerprint"]
    files = [name for name in _TLS_FILES if taken[name] is not None]
    if key is not None and (files or fingerprints):
        raise click.UsageError(
            "--psk-file and --tls-... both say who may connect, and TLS alone says it and hides the"
            " text: keep one of them"
        )
    if (files or fingerprints) and len(files) < len(_TLS_FILES):
        missing = [flag(name) for name in _TLS_FILES if name not in files]
        raise click.UsageError(
            "mutual TLS needs --tls-cert, --tls-key and --tls-ca on both sides: add "
            + " and ".join(missing)
        )
    if key is not None:
        from draftwire.transport.keys import PresharedKey

        return PresharedKey.read(key)
    if not files:
        return None
    from draftwire.transport.tls import TlsFiles

    return TlsFiles(taken["tls_cert"], taken["tls_key"], taken["tls_ca"], fingerprints)
