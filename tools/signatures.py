"""Write docs/API.md: the signatures at the borders of the layers, read from the code.

Run from the repository root: ``python -m tools.signatures [--check]``.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "API.md"
SOURCES = Path(__file__).parents[1] / "src"
MODULES = (
    "draftwire.drafter.engine",
    "draftwire.drafter.config",
    "draftwire.drafter.propose",
    "draftwire.drafter.program",
    "draftwire.drafter.server",
    "draftwire.verifier.engine",
    "draftwire.verifier.sampling",
    "draftwire.verifier.drafter",
    "draftwire.verifier.emission",
    "draftwire.verifier.generate",
    "draftwire.verifier.judge",
    "draftwire.verifier.client",
    "draftwire.verifier.remote",
    "draftwire.verifier.report",
    "draftwire.text.detokenizer",
    "draftwire.text.streamed",
    "draftwire.transport.channel",
    "draftwire.session.link",
    "draftwire.session.verifier_session",
    "draftwire.session.drafter_session",
    "draftwire.session.session_table",
    "draftwire.kernels.protocol",
    "draftwire.kernels.rows",
    "draftwire.rows.reply",
    "draftwire.rows.audit",
    "draftwire.wire.messages",
    "draftwire.wire.codec",
    "draftwire.wire.frames",
    "draftwire.exact.quantise",
    "draftwire.exact.words",
    "draftwire.exact.verify",
)
WIDTH = 100
HEAD = """# Signatures

Generated from the code by `make spec`: public names of the modules where layers meet, layer by
layer from the programs down to the arithmetic.

"""


def sentence(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """Return the first sentence of a docstring, or nothing."""
    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    end = text.find(". ")
    return text if end < 0 else text[: end + 1]


def public(name: str) -> bool:
    return not name.startswith("_")


def said(node: ast.ClassDef | ast.FunctionDef, indent: str) -> Iterator[str]:
    """Yield what a class or function is, as a comment."""
    text = sentence(node)
    if text:
        yield from textwrap.wrap(
            text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )


def arguments_of(node: ast.FunctionDef) -> list[str]:
    """Return the parameters as they are written, but for ``self``."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    missing = [None] * (len(plain) - len(given.defaults))
    pairs = [*zip(plain, [*missing, *given.defaults], strict=True)]
    found = [parameter(*pair) for pair in pairs if pair[0].arg not in ("self", "cls")]
    if given.vararg:
        found.append("*" + parameter(given.vararg, None))
    elif given.kwonlyargs:
        found.append("*")
    found += [parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        found.append("**" + parameter(given.kwarg, None))
    return found


def parameter(name: ast.arg, default: ast.expr | None) -> str:
    """Return one parameter with its annotation and default."""
    kind = f": {ast.unparse(name.annotation)}" if name.annotation else ""
    return name.arg + kind + (f" = {ast.unparse(default)}" if default is not None else "")


def function(node: ast.FunctionDef, indent: str) -> Iterator[str]:
    """Yield what a function does, and its signature."""
    names = {ast.unparse(decorator) for decorator in node.decorator_list}
    if any(name.endswith(".setter") for name in names):
        return
    yield from said(node, indent)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if names & {"property", "cached_property"}:
        yield f"{indent}{node.name}: {returned.removeprefix(' -> ')}"
        return
    found = arguments_of(node)
    line = f"{indent}def {node.name}({', '.join(found)}){returned}"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{indent}def {node.name}("
    yield from (f"{indent}    {each}," for each in found)
    yield f"{indent}){returned}"


def of_class(node: ast.ClassDef) -> Iterator[str]:
    """Yield a class: its bases, fields or members, constructor and public methods."""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield from said(node, "")
    yield f"class {node.name}{f'({bases})' if bases else ''}"
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and public(ast.unparse(item.target)):
            default = f" = {ast.unparse(item.value)}" if item.value is not None else ""
            yield f"    {ast.unparse(item.target)}: {ast.unparse(item.annotation)}{default}"
        elif isinstance(item, ast.Assign) and public(ast.unparse(item.targets[0])):
            yield f"    {ast.unparse(item)}"
        elif isinstance(item, ast.FunctionDef) and (
            public(item.name) or item.name in ("__init__", "__call__", "__len__", "__getitem__")
        ):
            yield from function(item, "    ")


def of_module(name: str) -> Iterator[str]:
    """Yield the section of a module."""
    path = SOURCES.joinpath(*name.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield f"## {name}"
    yield ""
    yield sentence(tree)
    yield ""
    yield "```"
    blank = False
    for node in tree.body:
        if blank and isinstance(node, ast.ClassDef | ast.FunctionDef) and public(node.name):
            yield ""
        if isinstance(node, ast.ClassDef) and public(node.name):
            yield from of_class(node)
            blank = True
        elif isinstance(node, ast.FunctionDef) and public(node.name):
            yield from function(node, "")
            blank = True
    yield "```"
    yield ""


def page() -> str:
    """Return the whole page."""
    return HEAD + "\n".join(line for name in MODULES for line in of_module(name))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if they differ")
    check: bool = parser.parse_args(arguments).check
    due = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == due:
        return 0
    if check:
        print(f"{PAGE} is not what the code says: run `make spec`", file=sys.stderr)
        return 1
    PAGE.write_text(due, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
