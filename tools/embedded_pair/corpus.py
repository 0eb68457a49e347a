"""The Python standard library's own source as documents for a language model."""

from __future__ import annotations

import ast
import hashlib
import platform
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path

LICENCE = "Python Software Foundation License Version 2 (PSF-2.0)"

# Generated tables and prose that would fill the vocabulary without teaching any Python.
SKIPPED_PARTS = frozenset(
    {"site-packages", "__pycache__", "encodings", "pydoc_data", "cjkencodings", "data", "lib2to3"}
)
MAX_FILE_BYTES = 300_000
LONG_CLASS_LINES = 40
HELD_OUT_ONE_IN = 32
WHOLE_FILE_ONE_IN = 3


@dataclass(frozen=True)
class Corpus:
    """Documents for training, documents held out (by whole file), and where they came from."""

    training: list[str]
    held_out: list[str]
    files: int
    characters: int
    source: str


def _bucket(name: str, salt: str, size: int) -> int:
    """A number below ``size`` that depends on the file's name alone, so that splits never move."""
    digest = hashlib.sha256(f"{salt}:{name}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    return number % size


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _unit_spans(body: list[ast.stmt]) -> list[tuple[int, int]]:
    """Line spans (first, last) of units: a function, a short class, a method, or a run of rest."""
    spans: list[tuple[int, int]] = []
    run_start: int | None = None
    run_end = 0
    for node in body:
        end = node.end_lineno or node.lineno
        if not _is_definition(node):
            run_start = node.lineno if run_start is None else run_start
            run_end = end
            continue
        if run_start is not None:
            spans.append((run_start, run_end))
            run_start = None
        methods = [n for n in getattr(node, "body", []) if _is_definition(n)]
        long_class = isinstance(node, ast.ClassDef) and end - node.lineno > LONG_CLASS_LINES
        if long_class and methods:
            spans.append((_first_line(node), _first_line(methods[0]) - 1))
            spans.extend((_first_line(m), m.end_lineno or m.lineno) for m in methods)
        else:
            spans.append((_first_line(node), end))
    if run_start is not None:
        spans.append((run_start, run_end))
    return spans


def split_units(source: str) -> list[str]:
    """Cut a module into functions, methods (dedented), short classes and the code between them.

    A model that sees one document per unit learns to emit the end token after a function and
    not only after a file of thousands of tokens. A module that does not parse yields nothing.
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return []
    lines = source.splitlines()
    units = []
    for first, last in _unit_spans(body):
        text = textwrap.dedent("\n".join(lines[first - 1 : last])).strip("\n").rstrip()
        # A method holding a string at column 0 cannot be dedented; it is left out.
        if text and not text[0].isspace():
            units.append(text + "\n")
    return units


def _documents(name: str, source: str) -> list[str]:
    if _bucket(name, "whole", WHOLE_FILE_ONE_IN) == 0:
        return [source.strip("\n") + "\n"]
    return split_units(source)


def load_corpus(root: Path | None = None) -> Corpus:
    """Read every usable module below ``root`` (default: this interpreter's standard library).

    One file in three stays whole, the others are cut into units; one file in 32 is held out.
    Both choices depend on the file's path inside the library alone.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    training: list[str] = []
    held_out: list[str] = []
    files = characters = 0
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_PARTS.intersection(relative.parts) or path.stat().st_size > MAX_FILE_BYTES:
            continue
        try:
            source = path.read_text(encoding="utf-8").expandtabs(8)
        except UnicodeDecodeError:
            continue
        name = relative.as_posix()
        documents = _documents(name, source)
        held = _bucket(name, "held-out", HELD_OUT_ONE_IN) == 0
        (held_out if held else training).extend(documents)
        files += bool(documents)
        characters += sum(map(len, documents))
    source_name = f"Python {platform.python_version()} standard library"
    return Corpus(training, held_out, files, characters, source_name)
