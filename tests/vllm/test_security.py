"""A drafter that asks who is there: the right key, the right certificates, and wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs

from draftwire.engines.vllm.config import Options
from draftwire.engines.vllm.proposer import connect
from draftwire.engines.vllm.target import Target, describe
from draftwire.errors import ConfigurationError
from draftwire.transport.keys import PresharedKey, write_new_key
from draftwire.transport.security import Security
from draftwire.transport.tls import TlsFiles
from testing.harness.certificates import fingerprint, tls_files
from tests.vllm.engines import (
    engine_arguments,
    remote_arguments,
    running,
    serving,
    speculation_of,
    texts,
    toy_drafter,
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    paths = folder / "right", folder / "wrong"
    for path in paths:
        write_new_key(path)
    return paths


@pytest.fixture(scope="module")
def target(tiny: Path) -> Target:
    return describe(EngineArgs(**engine_arguments(tiny)).create_engine_config())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


def as_options(files: TlsFiles, *pins: str) -> dict[str, Any]:
    return {
        "tls_cert": str(files.certificate),
        "tls_key": str(files.key),
        "tls_ca": str(files.trusted),
        "tls_fingerprint": [fingerprint(pin).hex() for pin in pins],
    }


def dial(tiny: Path, target: Target, drafter: Security | None, given: dict[str, Any]) -> None:
    """Connect as a worker does at its start, and end it again."""
    with serving(toy_drafter(tiny), security=drafter) as address:
        options = Options.parse({"address": str(address), **given}, depth=3)
        with connect(options, target, 4) as client:
            assert client.agreed is not None


def test_the_right_key_is_taken_and_every_other_refused_with_what_to_do(
    tiny: Path, target: Target, keys: tuple[Path, Path]
) -> None:
    right, wrong = (PresharedKey.read(path) for path in keys)
    ours = {"psk_file": str(keys[0])}
    dial(tiny, target, right, ours)
    for theirs, given, says in (
        (wrong, ours, "has another key: give both sides the same"),
        (right, {}, "asks for a key: add --psk-file FILE"),
        (None, ours, "was started without a key: start it with the same"),
    ):
        with pytest.raises(ConfigurationError, match=says) as caught:
            dial(tiny, target, theirs, given)
        assert "psk_file, tls_cert" in str(caught.value)  # how vLLM's user writes it
        for path in keys:
            assert path.read_text().strip() not in str(caught.value)


def test_certificates_are_taken_or_refused_with_what_to_do(
    tiny: Path, target: Target, keys: tuple[Path, Path], certificates: Path
) -> None:
    theirs = tls_files(certificates, "drafter")
    ours, stranger = tls_files(certificates, "verifier"), tls_files(certificates, "stranger")
    dial(tiny, target, theirs, as_options(ours))
    dial(tiny, target, theirs, as_options(ours, "drafter"))
    for drafter, given, says in (
        (theirs, as_options(stranger), "does not know this side: .*must trust this side"),
        (stranger, as_options(ours), "not trusted here"),
        (theirs, as_options(ours, "verifier"), "another certificate than the fingerprints say"),
        (theirs, {}, "speaks TLS: add --tls-cert"),
        (None, as_options(ours), "must be started with --tls-cert"),
        (PresharedKey.read(keys[0]), as_options(ours), "must be started with --tls-cert"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            dial(tiny, target, drafter, given)


@pytest.fixture(scope="module")
def keyed(tiny: Path, keys: tuple[Path, Path]) -> Iterator[str]:
    with serving(toy_drafter(tiny), security=PresharedKey.read(keys[0])) as address:
        yield str(address)


def test_an_engine_drafts_under_a_key(tiny: Path, keyed: str, keys: tuple[Path, Path]) -> None:
    arguments = remote_arguments(keyed, psk_file=str(keys[0]), deadline_ms=20_000)
    with running(tiny, **arguments) as engine:
        request = SamplingParams(max_tokens=12, seed=1, ignore_eos=True)
        assert len(texts(engine, [(3, 4)], [request])[0]) == 12
        assert speculation_of(engine).metrics["drafts"] > 0


def test_an_engine_with_another_key_does_not_start(
    tiny: Path, keyed: str, keys: tuple[Path, Path]
) -> None:
    with (
        pytest.raises(ConfigurationError, match="has another key"),
        running(tiny, **remote_arguments(keyed, psk_file=str(keys[1]))),
    ):
        raise AssertionError("an engine has started")
