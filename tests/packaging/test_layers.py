"""The source as a graph: no circle between files, whatever an import stands under."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Graph = Mapping[str, set[str]]

KNOWN_CIRCLES: list[list[str]] = []


def modules(root: Path) -> dict[str, Path]:
    """Every module under a folder of packages, by its dotted name."""
    found = {}
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    """Names that a module imports: at its top, inside functions and for types alike."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def import_graph(root: Path) -> Graph:
    """Which module imports which, of those under ``root``."""
    files = modules(root)
    return {
        name: set(imported(ast.parse(file.read_text()), files)) & files.keys() - {name}
        for name, file in files.items()
    }


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that reach one another: mutual reachability, by transitive closure."""
    reached = {name: _reach(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(map(list, groups))


def _reach(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def test_no_circle_between_files() -> None:
    found = circles(import_graph(ROOT / "src"))
    assert [each for each in found if each not in KNOWN_CIRCLES] == []


@pytest.mark.parametrize(
    "line",
    [
        "from package.b import thing",
        "from package import b",
        "import package.b",
        "def lazily():\n    from package.b import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.b import Thing",
    ],
)
def test_a_circle_is_found_whatever_the_import_stands_under(tmp_path: Path, line: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(f"{line}\n")
    (package / "b.py").write_text("from package.c import thing\n")
    (package / "c.py").write_text("from package import a\n")
    (package / "d.py").write_text("from package import a\n")
    assert circles(import_graph(tmp_path)) == [["package.a", "package.b", "package.c"]]
