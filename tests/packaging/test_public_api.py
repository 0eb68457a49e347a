"""The lazy names of the package, and what the licence and the typing marker promise."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

import draftwire

ROOT = Path(__file__).parents[2]


def test_every_public_name_loads_from_where_it_is_said_to_be() -> None:
    for name in draftwire.__all__:
        assert getattr(draftwire, name) is not None
        assert name in dir(draftwire)


def test_a_type_checker_reads_the_names_that_load() -> None:
    tree = ast.parse(Path(draftwire.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    found = {"__version__"}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names:
            found.add(alias.name)
            loaded = getattr(importlib.import_module(node.module), alias.name)
            assert loaded is getattr(draftwire, alias.name)
    assert found == set(draftwire.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        _ = draftwire.frobnicate


def test_typed_and_licensed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")
    assert (ROOT / "src/draftwire/py.typed").is_file()


def test_every_dependency_is_pinned_for_the_set_up() -> None:
    pins = {
        line.split("==")[0]
        for name in ("torch.txt", "run.txt", "dev.txt")
        for line in (ROOT / "requirements" / name).read_text().splitlines()
        if line and not line.startswith(("#", "-r"))
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in ("hf", "dev"):
        wanted += project["optional-dependencies"][extra]
    names = {want.split(">")[0].split("=")[0].strip() for want in wanted}
    assert names <= pins, names - pins


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    heading = next(line for line in headings if line != "## Unreleased")
    assert heading.split()[1] == draftwire.__version__
