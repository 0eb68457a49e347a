"""The command line inside the test process, a tiny pair of models, and drafters to talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from draftwire.cli.main import run


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Pair:
    target: Path
    drafter: Path
    stranger: Path


Cli = Callable[..., Ran]
Serving = Callable[..., AbstractContextManager[str]]
VOCAB = 48


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: str) -> Ran:
        code = int(run(list(arguments)))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Folders of a tiny target and drafter of one tokenizer, and of a drafter of another."""
    from testing.harness.tiny_models import save, tiny_llama, tiny_tokenizer

    root = tmp_path_factory.mktemp("pair")
    tokenizer = tiny_tokenizer(VOCAB)
    return Pair(
        target=save(root / "target", tiny_llama(VOCAB, seed=1), tokenizer),
        drafter=save(root / "drafter", tiny_llama(VOCAB, layers=1, seed=2), tokenizer),
        stranger=save(
            root / "stranger", tiny_llama(VOCAB, layers=1, seed=3), tiny_tokenizer(VOCAB, rename=5)
        ),
    )


@pytest.fixture(scope="session")
def serving(pair: Pair) -> Serving:
    """Serve a tiny drafter in a thread, with the limits that a test needs; yields its address."""

    @contextmanager
    def serve(
        folder: Path | None = None, security: Any = None, engine: Any = None, **limits: Any
    ) -> Iterator[str]:
        from draftwire.drafter.program import DrafterConfig, DrafterProgram
        from draftwire.engines.hf import HfDraftEngine
        from testing.harness.servers import serving

        engine = engine or HfDraftEngine.from_folder(folder or pair.drafter)
        program = DrafterProgram(engine, DrafterConfig(**limits))
        with serving(program, security) as server:
            yield str(server.address)

    return serve
