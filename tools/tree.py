"""Print what a tree of sources is made of: root folders, modules, lines, circles of imports.

python -m tools.tree [FOLDER]      another checkout's folder, such as one of `git worktree add`
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

CODE = ("src", "spec", "testing", "tests", "benchmarks", "tools")


def tracked(root: Path) -> list[Path]:
    """Return the files that git tracks, relative to the root."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [Path(name) for name in names if name and (root / name).is_file()]


def module_name(path: Path) -> str:
    """Return the dotted name of a module under ``src``."""
    parts = path.relative_to("src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield what a module imports anywhere, in functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else ()), *(node.module or "").split(".")]
            base = ".".join(filter(None, parts))
            yield base
            yield from (f"{base}.{name.name}" for name in node.names)


def graph(root: Path, paths: list[Path]) -> dict[str, set[str]]:
    """Return which modules of ``src`` each of them imports."""
    modules = {
        module_name(path): path for path in paths if path.parts[0] == "src" and path.suffix == ".py"
    }
    found = {}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = ast.parse((root / path).read_bytes())
        found[name] = {each for each in imported(tree, package) if each in modules} - {name}
    return found


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that reach one another, each sorted (Tarjan's components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            at = stack.index(name)
            members = stack[at:]
            del stack[at:]
            if len(members) > 1:
                found.append(sorted(members))

    for name in sorted(edges):
        if name not in order:
            visit(name)
    return found


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path()
    paths = tracked(root)
    folders = sorted({path.parts[0] for path in paths if len(path.parts) > 1})
    shown = [name for name in folders if not name.startswith(".")]
    print(f"root folders: {len(shown)} ({' '.join(shown)})")
    print(f"{'':<12} {'modules':>8} {'lines':>8} {'longest':>8} {'over 500':>9}")
    sources = [path for path in paths if path.suffix == ".py"]
    for folder in [*CODE, *(name for name in shown if name not in CODE)]:
        lengths = [
            len((root / path).read_text(encoding="utf-8").splitlines())
            for path in sources
            if path.parts[0] == folder
        ]
        if lengths:
            over = sum(length > 500 for length in lengths)
            print(f"{folder:<12} {len(lengths):>8} {sum(lengths):>8} {max(lengths):>8} {over:>9}")
    found = circles(graph(root, paths))
    print(f"circles of imports in src: {len(found)}")
    for circle in found:
        print("  " + " ".join(circle))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
