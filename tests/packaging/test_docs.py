"""What the documents say of commands, files, names and codes is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

import draftwire
from draftwire.cli.main import COMMANDS, cli
from draftwire.cli.options import LayoutChoice
from draftwire.cli.sizes import framed_bytes, payload_bytes
from draftwire.errors import ExitCode
from draftwire.wire.fields import POSITION_TABLE
from draftwire.wire.registry import Layout
from tools import signatures

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("spec/*.md")])
FOLDERS = "docs|spec|src|testing|tests|benchmarks|tools|requirements"
VLLM_SERVE = {  # flags of `vllm serve`
    "--additional-config",
    "--api-server-count",
    "--max-num-seqs",
    "--skip-tokenizer-init",
    "--speculative-config",
    "--worker-cls",
    "--per-request-spec-decode-metrics",
}
BENCH_VLLM = {"--gemma", "--tokens"}
BENCH = {"--only"}
OTHER_PROGRAMS = {"--index-url", "--strict"} | VLLM_SERVE | BENCH_VLLM | BENCH


def flags() -> set[str]:
    assert isinstance(cli, click.Group)
    commands = [cli.get_command(click.Context(cli), name) for name in COMMANDS]
    return {
        opt
        for command in commands
        if command
        for param in command.params
        for opt in (*param.opts, *param.secondary_opts)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_flag_exists(document: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", document.read_text()))
    assert named - OTHER_PROGRAMS <= flags() | {"--help", "--quick"}


def test_the_flags_of_benchmarks_are_theirs() -> None:
    folder = ROOT / "benchmarks"
    vllm = (folder / "vllm.py").read_text() + (folder / "vllm_ways.py").read_text()
    for flags_named, source in ((BENCH_VLLM, vllm), (BENCH, (folder / "run.py").read_text())):
        for flag in flags_named:
            assert f'"{flag}"' in source


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_exists(document: Path) -> None:
    named = re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./*-]*)", document.read_text())
    for name in named:
        assert list(ROOT.glob(name.rstrip("./"))), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for name in re.findall(r"\]\(([^)#:\s]+)\)", document.read_text()):
        assert (document.parent / name).exists(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_exists(document: Path) -> None:
    """A dotted name in backticks, or behind ``python -m``, leads to a module or a name in one."""
    found = re.findall(
        r"(?:`|python -m )((?:draftwire|benchmarks|testing|tools|spec)(?:\.\w+)+)",
        document.read_text(),
    )
    for name in found:
        assert resolves(name), name


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or a name that its module's text has."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        base = ROOT.joinpath(*(["src"] if parts[0] == "draftwire" else []), *parts[:end])
        source = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if source.is_file():
            text = source.read_text()
            return all(re.search(rf"\b{rest}\b", text) for rest in parts[end:])
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_parse_and_import_what_exists(document: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            names = {name.name for name in node.names}
            if node.module == "draftwire":
                assert names <= set(draftwire.__all__)
            elif node.module.startswith("draftwire."):
                assert all(resolves(f"{node.module}.{name}") for name in names), names


def test_the_signatures_are_those_of_the_code() -> None:
    assert signatures.main(["--check"]) == 0, "run `python -m tools.signatures`"


def test_the_exit_codes_of_the_table_are_all_of_them() -> None:
    text = (ROOT / "docs/guides/cli.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", text, re.MULTILINE)
    found = {int(code): name.strip().upper().replace(" ", "_") for code, name in rows}
    assert found == {int(code): code.name for code in ExitCode}


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z]+(?:-[a-z]+)*)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_kinds_of_requests_whose_laws_are_held_in_vllm_are_counted_right() -> None:
    for line in ast.parse((ROOT / "tests/vllm/test_laws.py").read_text()).body:
        if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "KINDS":
            assert isinstance(line.value, ast.Dict)
            kinds = len(line.value.keys)
    page = (ROOT / "docs/guides/vllm.md").read_text()
    assert re.findall(r"Laws are held for (\w+) kinds", page) == [str(kinds)]


def test_bytes_a_position_of_the_tuning_table() -> None:
    text = (ROOT / "docs/guides/tuning.md").read_text()
    said = re.search(r"`sparse:32` \| (\d+)", text)
    wide = re.search(r"`sparse:64`, `sparse:256` \| (\d+), ([\d,]+)", text)
    assert said and wide

    def bytes_of(support: int) -> int:
        choice = LayoutChoice(Layout.SPARSE, support)
        found = framed_bytes(choice, 1000, 2) - framed_bytes(choice, 1000, 1)
        assert found == payload_bytes(choice, 1000, 1) + POSITION_TABLE.bytes
        return found

    assert int(said[1]) == bytes_of(32)
    assert int(wide[1]) == bytes_of(64)
    assert int(wide[2].replace(",", "")) == bytes_of(256)
