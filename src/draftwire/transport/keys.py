"""The file of a pre-shared key: made, written and read so that only its owner can see it."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from draftwire.errors import ConfigurationError

KEY_BYTES: Final = 32
LARGEST_FILE: Final = 4096  # bytes; a key file is one short line
_FEWEST_VALUES: Final = 16  # different bytes; 32 random ones have fewer once in 10^13 keys


@dataclass(frozen=True, slots=True)
class PresharedKey:
    """A secret that drafter and verifier share; it never shows in a message, a log or a repr."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what could be guessed."""
        if len(self.secret) < KEY_BYTES or len(set(self.secret)) < _FEWEST_VALUES:
            raise ConfigurationError(
                f"a key is {KEY_BYTES} random bytes or more, and no password:"
                " make one with draftwire keygen FILE"
            )

    @classmethod
    def read(cls, path: Path) -> PresharedKey:
        """Read a key file: one line of hexadecimal or base64.

        Raises ConfigurationError: no such file, others may read it, or it holds no key. What is in
        the file is never part of the message.
        """
        text = read_private(path, "key file")
        try:
            secret = _decoded(text.decode("ascii").strip())
        except (UnicodeDecodeError, binascii.Error, ValueError):
            raise ConfigurationError(
                f"{path} holds no key: {KEY_BYTES} bytes or more in hexadecimal or base64; make one"
                " with draftwire keygen FILE"
            ) from None
        try:
            return cls(secret)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from None


def write_new_key(path: Path) -> None:
    """Write a new random key that only its owner may read; never over a file that is there."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(
            f"{path} is there already and stays as it is: choose another name, or remove it first"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(os.urandom(KEY_BYTES).hex() + "\n")


def read_private(path: Path, what: str) -> bytes:
    """Return the content of a small file that only its owner may read; ConfigurationError if not.

    The permissions checked are those of the very file that is read.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"the {what} {path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"the {what} {path} is no plain file")
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"others may read the {what} {path}: chmod 600 {path}")
    if len(content) > LARGEST_FILE:
        raise ConfigurationError(f"the {what} {path} is larger than {LARGEST_FILE} bytes")
    return content


def _decoded(text: str) -> bytes:
    """Read hexadecimal where all of it is that, base64 otherwise."""
    if len(text) % 2 == 0 and all(character in "0123456789abcdefABCDEF" for character in text):
        return bytes.fromhex(text)
    return base64.b64decode(text, validate=True)
