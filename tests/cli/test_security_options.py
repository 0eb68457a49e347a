"""Keys and certificates on the command line: keygen, contradictions, and two real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftwire.cli.security import take_security
from draftwire.errors import ExitCode
from draftwire.transport.keys import PresharedKey, write_new_key
from draftwire.transport.tls import TlsFiles
from testing.harness.certificates import fingerprint, tls_files
from tests.cli.conftest import Cli, Pair, Serving

SERVE = ("serve",)
GENERATE = ("generate", "--prompt", "x", "--drafter", "127.0.0.1:7711")
PIN = "ab" * 32
DRAFTWIRE = (sys.executable, "-m", "draftwire")
CHILD = "--until-stdin-closes"

CONTRADICTIONS = [
    (("--psk-file", "k", "--tls-cert", "c"), "keep one of them"),
    (("--psk-file", "k", "--tls-fingerprint", PIN), "keep one of them"),
    (("--tls-cert", "c"), "add --tls-key and --tls-ca"),
    (("--tls-cert", "c", "--tls-key", "k"), "add --tls-ca"),
    (("--tls-ca", "a"), "add --tls-cert and --tls-key"),
    (("--tls-fingerprint", PIN), "add --tls-cert and --tls-key and --tls-ca"),
    (("--tls-fingerprint", "ab:cd"), "64 hexadecimal digits"),
]


@pytest.mark.parametrize("command", [SERVE, GENERATE], ids=["serve", "generate"])
@pytest.mark.parametrize(("arguments", "says"), CONTRADICTIONS, ids=lambda value: " ".join(value))
def test_contradictions_say_what_to_write(
    cli: Cli, command: tuple[str, ...], arguments: tuple[str, ...], says: str
) -> None:
    ran = cli(*command, *arguments)
    assert ran.code == ExitCode.USAGE
    assert says in ran.err and ran.err.count("\n") == 1 and ran.out == ""


def test_without_a_drafter_there_is_nothing_to_secure(cli: Cli) -> None:
    ran = cli("generate", "--prompt", "x", "--psk-file", "k")
    assert ran.code == ExitCode.USAGE and "add --drafter HOST:PORT" in ran.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_open_address_without_either_names_both(cli: Cli, host: str) -> None:
    ran = cli("serve", "--host", host)
    assert ran.code == ExitCode.USAGE
    assert "--psk-file FILE" in ran.err and "--tls-cert, --tls-key and --tls-ca" in ran.err


@pytest.mark.parametrize("command", [SERVE, GENERATE], ids=["serve", "generate"])
def test_a_bad_key_file_is_named_and_not_shown(
    cli: Cli, command: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "k"
    path.write_text("hunter2hunter2")
    path.chmod(0o600)
    ran = cli(*command, "--psk-file", str(path))
    assert ran.code == ExitCode.CONFIGURATION
    assert str(path) in ran.err and "keygen" in ran.err and "hunter2" not in ran.err
    path.chmod(0o644)
    ran = cli(*command, "--psk-file", str(path))
    assert ran.code == ExitCode.CONFIGURATION and "chmod 600" in ran.err


def test_keygen_writes_a_private_key_and_never_prints_it(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "new.key"
    ran = cli("keygen", str(path))
    assert ran.code == ExitCode.OK and str(path) in ran.out
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().strip() not in ran.out + ran.err
    again = cli("keygen", str(path))
    assert again.code == ExitCode.CONFIGURATION and "stays as it is" in again.err


def test_the_options_become_one_security(tmp_path: Path) -> None:
    path = tmp_path / "k"
    write_new_key(path)
    none = dict.fromkeys(("tls_cert", "tls_key", "tls_ca", "psk_file"), None)
    values = {**none, "tls_fingerprint": (), "other": 1}
    assert take_security(values) is None and values == {"other": 1}
    values = {**none, "tls_fingerprint": (), "psk_file": path}
    assert take_security(values) == PresharedKey.read(path)
    names = {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_ca": Path("a")}
    values = {**none, **names, "tls_fingerprint": (b"f" * 32,)}
    assert take_security(values) == TlsFiles(Path("c"), Path("k"), Path("a"), (b"f" * 32,))


@contextmanager
def served(pair: Pair, *arguments: str) -> Iterator[tuple[str, list[str]]]:
    """A drafter process on every address of this machine; its address, later its stderr."""
    process = subprocess.Popen(
        (*DRAFTWIRE, "serve", "--model", str(pair.drafter), "--port", "0", *arguments, CHILD),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        address = process.stdout.readline().split()[-1]
        yield address.replace("0.0.0.0", "127.0.0.1"), said
    finally:
        said.append(process.communicate(timeout=60)[1])
    assert process.returncode == 0


def generated(cli: Cli, pair: Pair, address: str, *arguments: str):
    prompt = ("--prompt", "w1", "--max-tokens", "8", "--seed", "1", "--deadline-ms", "20000")
    return cli("generate", "--target", str(pair.target), "--drafter", address, *prompt, *arguments)


def test_two_processes_with_a_key(cli: Cli, pair: Pair, tmp_path: Path) -> None:
    """The right key, another key and none, against a drafter that every machine can reach."""
    key, other = tmp_path / "k", tmp_path / "other"
    write_new_key(key)
    write_new_key(other)
    with served(pair, "--host", "0.0.0.0", "--psk-file", str(key)) as (address, said):
        good = generated(cli, pair, address, "--psk-file", str(key))
        assert good.code == ExitCode.OK and "acceptance by position" in good.err
        wrong = generated(cli, pair, address, "--psk-file", str(other))
        assert wrong.code == ExitCode.PROTOCOL and "has another key" in wrong.err
        none = generated(cli, pair, address)
        assert none.code == ExitCode.PROTOCOL and "asks for a key: add --psk-file" in none.err
    assert said[0].count("AUTHENTICATION_FAILED") >= 1
    for path in (key, other):
        secret = path.read_text().strip()
        assert all(secret not in text for text in (said[0], good.err, wrong.err, none.err))


def test_generate_with_certificates(cli: Cli, pair: Pair, serving: Serving, tmp_path: Path) -> None:
    def flags(files: TlsFiles) -> tuple[str, ...]:
        return (
            *("--tls-cert", str(files.certificate), "--tls-key", str(files.key)),
            *("--tls-ca", str(files.trusted)),
        )

    theirs = tls_files(tmp_path, "drafter")
    ours = flags(tls_files(tmp_path, "verifier"))
    with serving(security=theirs) as address:
        good = generated(cli, pair, address, *ours)
        assert good.code == ExitCode.OK and "acceptance by position" in good.err
        pinned = ("--tls-fingerprint", fingerprint("drafter").hex(":"))
        good = generated(cli, pair, address, *ours, *pinned)
        assert good.code == ExitCode.OK and "acceptance by position" in good.err
        wrong = generated(cli, pair, address, *ours, "--tls-fingerprint", PIN)
        assert wrong.code == ExitCode.PROTOCOL and "not trusted here" in wrong.err
        plain = generated(cli, pair, address)
        assert plain.code == ExitCode.PROTOCOL and "speaks TLS: add --tls-cert" in plain.err
