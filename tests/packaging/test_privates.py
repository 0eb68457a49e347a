"""Tests, benchmarks and the harness see what a caller can see: no private attribute of another."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS: Final = ("tests", "testing", "benchmarks", "tools")

ALLOWED: Final = {
    "benchmarks/peers.py": "transformers' own sampler, which has no public name",
    "tests/drafter/test_histories.py": "two programs are compared in all that they hold",
    "tests/drafter/test_session_leases.py": "a request that is lost inside the verifier: a fault",
    "tests/engines/test_hf_batch.py": "transformers' own setting, which has no public name",
    "tests/fuzz/test_transcripts.py": "a mutant: a link that says ERROR twice",
    "tests/kernels/test_shards_verify.py": "a mutant of the ranks' judge",
    "tests/rows/test_reply.py": "the plain function that a compiled one repeats",
    "tests/session/slot_explorer.py": "a model checker copies every state of a world",
    "tests/session/slot_worlds.py": "a model checker's states and owners",
    "tests/session/test_next_step.py": "every state that a retry may meet is made by hand",
    "tests/session/test_slot_worlds.py": "mutants of the slots' life",
    "tools/block_goldens.py": "the reference code's backbone, which has no public name",
}
"""The files that need one, and why."""


def privates(tree: ast.AST) -> Iterator[str]:
    """Private names of others that a module reads, replaces or imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if own else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = [each.value for each in node.args if isinstance(each, ast.Constant)]
            names = [str(each) for each in given] if called in ("setattr", "getattr") else []
        else:
            continue
        yield from (name for name in names if name.startswith("_") and name[1:2] != "_")


def test_no_private_attribute_of_another_is_used() -> None:
    found: Counter[str] = Counter()
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            used = Counter(privates(ast.parse(file.read_text())))
            if used:
                found[str(file.relative_to(ROOT))] += used.total()
    assert found.keys() - ALLOWED.keys() == set(), "without a reason"
    assert ALLOWED.keys() - found.keys() == set(), "no entry is needed any more"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("client._link.send()", "_link"),
        ("from package import _helper", "_helper"),
        ("patch.setattr(Client, '_receive', slower)", "_receive"),
        ("getattr(client, '_link')", "_link"),
    ],
)
def test_a_private_attribute_is_found(line: str, name: str) -> None:
    assert list(privates(ast.parse(line))) == [name]


@pytest.mark.parametrize("line", ["self._mine = 1", "cls._count", "type.__name__", "_ = 1"])
def test_ones_own_and_special_names_are_none(line: str) -> None:
    assert not list(privates(ast.parse(line)))
