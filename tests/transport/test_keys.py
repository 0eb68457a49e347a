"""Key files: what is written, what is read, what is refused, and that none of it shows."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from draftwire.errors import ConfigurationError
from draftwire.transport.keys import PresharedKey, write_new_key

SECRET = bytes(range(100, 132))


def file_with(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "file.key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_new_key_is_private_random_and_comes_back(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    write_new_key(first)
    write_new_key(second)
    assert first.stat().st_mode & 0o777 == 0o600
    keys = PresharedKey.read(first), PresharedKey.read(second)
    assert keys[0] != keys[1] and len(keys[0].secret) == 32
    assert keys[0].secret.hex() not in repr(keys[0]) and str(keys[0].secret) not in repr(keys[0])


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    path = file_with(tmp_path, b"mine")
    with pytest.raises(ConfigurationError, match="stays as it is"):
        write_new_key(path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_new_key(tmp_path / "nowhere" / "key")


@pytest.mark.parametrize(
    "content",
    [
        SECRET.hex().encode(),
        SECRET.hex().upper().encode() + b"\n",
        base64.b64encode(SECRET) + b"\r\n",
    ],
)
def test_hexadecimal_and_base64_are_read(tmp_path: Path, content: bytes) -> None:
    assert PresharedKey.read(file_with(tmp_path, content)).secret == SECRET


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"correct horse battery staple",
        SECRET[:31].hex().encode(),
        b"00" * 32,
        b"0123456789abcdef" * 4,
        SECRET,
        b"\xff" * 64,
        SECRET.hex().encode() + b"\n" + SECRET.hex().encode(),
        SECRET.hex().encode() * 65,
    ],
    ids=["empty", "words", "short", "zeros", "counting", "raw", "binary", "two", "long"],
)
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PresharedKey.read(file_with(tmp_path, content))
    said = str(caught.value)
    assert str(tmp_path) in said
    for piece in (content.decode("latin-1"), content.hex()):
        assert not piece or piece not in said
    assert caught.value.__cause__ is None  # nor in what a traceback would print


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o601, 0o777])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = file_with(tmp_path, SECRET.hex().encode(), mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        PresharedKey.read(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        PresharedKey.read(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        PresharedKey.read(tmp_path)
    with pytest.raises(ConfigurationError, match="no plain file"):
        PresharedKey.read(Path(os.devnull))
