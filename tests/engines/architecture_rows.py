"""The walk over all classes beside the guide's table; two test files share it, for two workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from testing.harness.architecture_walk import walk
from tools.architectures import PAGE, rows, version


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No warning of a model that is tried and refused on purpose."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def agrees(model_type: str) -> None:
    """Try a class out; it does what the table says. Where transformers is another, it only runs."""
    found = walk(model_type)
    if version() in PAGE.read_text():
        assert rows()[found.name] == found.row(), "run `python -m tools.architectures`"
