"""The tables of spec/protocol.md are those of the registry, and leave nothing of it out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwire.errors import ProtocolErrorCode
from draftwire.wire import meanings, registry
from draftwire.wire.registry import MessageType
from spec.generators import tables as spec_tables


def test_spec_agrees_with_the_registry() -> None:
    assert spec_tables.main(["--check"]) == 0


def test_a_changed_table_is_found_and_written_again(tmp_path: Path) -> None:
    page = tmp_path / "protocol.md"
    original = spec_tables.PAGE.read_text(encoding="utf-8")
    page.write_text(original.replace("| 1 | HELLO |", "| 7 | HELLO |"), encoding="utf-8")
    assert spec_tables.main(["--check"], page) == 1
    assert spec_tables.main([], page) == 0
    assert page.read_text(encoding="utf-8") == original
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="generated"):
        spec_tables.main([], page)


def test_every_message_and_every_error_code_is_explained() -> None:
    assert set(registry.PAYLOAD_FIELDS) == set(MessageType)
    assert set(registry.SENDERS) == set(MessageType)
    assert set(meanings.MESSAGE_MEANINGS) == set(MessageType)
    assert set(meanings.ERROR_MEANINGS) == set(ProtocolErrorCode)


def test_every_rule_stands_once_in_the_section_that_the_contents_name() -> None:
    page = spec_tables.PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^## ([A-K])\. .*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    bodies = re.findall(r"^## [A-K]\. (.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    found = {
        letter: [int(number) for number in re.findall(r"^- \*\*P(\d+)\.\*\*", body, re.MULTILINE)]
        for letter, body in zip(sections, bodies, strict=True)
    }
    assert sorted(each for numbers in found.values() for each in numbers) == list(range(1, 36))
    for letter, numbers in found.items():
        assert numbers == sorted(numbers)
        named = re.search(rf"^\| {letter}\. [^|]*\| ([^|]*) \|$", page, re.MULTILINE)
        assert named
        assert numbers == list(spanned(named[1]))


def spanned(text: str) -> Iterator[int]:
    """Yield the numbers of "P9 to P14, P16"."""
    for part in text.split(", "):
        first, *last = (int(number) for number in re.findall(r"P(\d+)", part))
        yield from range(first, (last or [first])[0] + 1)
