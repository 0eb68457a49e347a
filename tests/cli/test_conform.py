"""``draftwire conform``: shipped vectors are met, changed ones are not, and what is no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwire.conformance.checks import check_files
from draftwire.errors import ConfigurationError, ExitCode, ProtocolErrorCode
from tests.cli.conftest import Cli

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
FILES = sorted(VECTORS.glob("*.jsonl"))
# Codes that no bytes of one stream or conversation lead to: they need a fault inside a peer, a
# slot of another size than was agreed, a session that is not open.
UNREACHABLE = {"UNKNOWN_SESSION", "INTERNAL", "SHUTTING_DOWN", "REFUSED_ARITHMETIC"}
# Found by a verifier in a whole reply; transcripts show them as a dropped proposal.
IN_TRANSCRIPTS = {
    "WRONG_SESSION",
    "WRONG_SLOT",
    "WRONG_GENERATION",
    "WRONG_ROUND",
    "STALE",
    "AUDIT_FAILED",
    "CONTEXT_LIMIT",
}


def load(name: str) -> list[dict[str, Any]]:
    lines = (VECTORS / f"{name}.jsonl").read_text(encoding="ascii").splitlines()
    return [json.loads(line) for line in lines]


def save(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="ascii")
    return path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_vectors_are_met(path: Path) -> None:
    lines: list[str] = []
    summary = check_files([path], lines.append)
    assert summary.conforming, lines
    assert summary.vectors > 0
    assert len(lines) == 1


def test_the_kinds_are_all_there_and_small() -> None:
    kinds = {path.stem for path in FILES}
    assert kinds == {"quantise", "draw", "words", "verdicts", "laws", "frames", "transcripts"}
    assert sum(path.stat().st_size for path in FILES) < 2_000_000


def test_every_error_code_has_a_vector() -> None:
    codes = set()
    for vector in load("frames")[1:]:
        codes.add(vector.get("refused"))
        codes |= {message.get("dropped") for message in vector.get("messages", [])}
    error = b"DWIR\x02\x08"
    for vector in load("transcripts")[1:]:
        for turn in vector.get("exchange", []):
            data = bytes.fromhex(turn["out"])
            while error in data:
                data = data[data.index(error) :]
                codes.add(ProtocolErrorCode(int.from_bytes(data[32:34], "little")).name)
                data = data[16:]
    codes.discard(None)
    missing = {code.name for code in ProtocolErrorCode} - codes
    assert missing == UNREACHABLE | IN_TRANSCRIPTS


def test_command_says_what_was_met(cli: Cli) -> None:
    ran = cli("conform", str(VECTORS / "draw.jsonl"), str(VECTORS / "words.jsonl"))
    assert ran.code == ExitCode.OK
    assert ran.out.splitlines()[-1].endswith("2 files: conforming")
    quiet = cli("conform", "--quiet", str(VECTORS / "words.jsonl"))
    assert len(quiet.out.splitlines()) == 1


Change = Callable[[dict[str, Any]], None]


def change(**fields: Any) -> Change:
    return lambda vector: vector.update(fields)


@pytest.mark.parametrize(
    ("name", "op", "change"),
    [
        ("quantise", "quantise", change(weights=[1])),
        ("quantise", "exp64", change(result="00" * 8)),
        ("quantise", "allocate", change(counts=[])),
        ("draw", "draw", change(token=99)),
        ("draw", "below", change(read=77)),
        ("draw", "locate", change(index=-1)),
        ("words", "philox", change(lanes=[0, 0, 0, 0])),
        ("words", "key", change(key=[0, 0])),
        ("words", "words", change(words=[0])),
        ("verdicts", "round", change(token=77)),
        ("verdicts", "target_only", change(token=77)),
        ("laws", "text_law", change(law={"0": "1/1"})),
        ("frames", "stream", change(refused="BAD_MAGIC")),
        ("frames", "hello", change(agreed={})),
        ("transcripts", "drafter", change(closed="maybe")),
        ("transcripts", "verifier", change(actions=[{"do": "connect", "out": "", "in": ""}])),
        ("transcripts", "key_use", change(macs=["00" * 16])),
        ("transcripts", "key_use", change(key="07" * 32)),
        ("transcripts", "keyed_drafter", change(nonce="07" * 32)),
        ("transcripts", "keyed_verifier", change(closed=True)),
        ("transcripts", "limited_drafter", change(limits={"refusals": 1, "positions": 0})),
        ("transcripts", "limited_drafter", change(closed=True)),
    ],
)
def test_a_changed_vector_is_not_met(
    cli: Cli, tmp_path: Path, name: str, op: str, change: Change
) -> None:
    header, *vectors = load(name)
    vector = next(one for one in vectors if one["op"] == op and "refused" not in one)
    change(vector)
    path = save(tmp_path / "changed.jsonl", [{**header, "count": 1}, vector])
    ran = cli("conform", str(path))
    assert ran.code == ExitCode.NOT_CONFORMING, ran.err
    assert vector["id"] in ran.out
    assert "1 not met" in ran.out


GOOD_HEADER = {"format": "draftwire-vectors", "version": 1, "kind": "draw", "count": 1}
GOOD_LINE = {"id": "draw-1", "op": "below", "bound": 1, "bits": 24, "words": [], "value": 0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "first line must be a header"),
        ("\x00\xff binary", "is not JSON"),
        ("[]\n", "is not a JSON object"),
        ('{"format": "other"}\n', "first line must be a header"),
        (json.dumps({**GOOD_HEADER, "version": 9}), "format version 9"),
        (json.dumps({**GOOD_HEADER, "count": "x"}), 'needs a "kind" and a "count"'),
        (json.dumps({**GOOD_HEADER, "kind": "poems", "count": 0}), 'no checks for kind "poems"'),
        (json.dumps(GOOD_HEADER) + "\n", "0 vectors where its header says 1"),
        (json.dumps(GOOD_HEADER) + "\n{}\n", 'needs an "id" and an "op"'),
        (json.dumps(GOOD_HEADER) + "\n{broken\n", "line 2: is not JSON"),
        (json.dumps(GOOD_HEADER) + "\n" + '{"id":"x","op":"dance"}\n', 'no check for op "dance"'),
        (json.dumps(GOOD_HEADER) + "\n" + json.dumps(GOOD_LINE) + "\n", "is not a whole below"),
        ("[" * 100_000 + "\n", "is not JSON"),
    ],
)
def test_what_is_no_vector_file_is_one_clear_error(
    cli: Cli, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(content, encoding="latin-1")
    ran = cli("conform", str(path))
    assert ran.code == ExitCode.CONFIGURATION
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


LAW = {"id": "x", "op": "text_law", "bits": 1, "max_tokens": 1, "depths": [1], "end_tokens": []}
LAW |= {"p": {"*": [1, 1]}, "q": {"*": [1, 1]}, "law": {"0": "1/2", "1": "1/2"}}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"bits": 0},
        {"bits": 1 << 70},
        {"bits": "1"},
        {"depths": []},
        {"depths": [1 << 70]},
        {"max_tokens": 1 << 70},
        {"p": {}},
        {"q": {"*": [0, 0]}},
    ],
)
def test_nonsense_in_a_law_ends_at_once(cli: Cli, tmp_path: Path, change: dict[str, Any]) -> None:
    header = {"format": "draftwire-vectors", "version": 1, "kind": "laws", "count": 1}
    file = tmp_path / "laws.jsonl"
    file.write_text(json.dumps(header) + "\n" + json.dumps(LAW | change) + "\n")
    ran = cli("conform", str(file))
    wanted = {0} if not change else {ExitCode.CONFIGURATION, ExitCode.NOT_CONFORMING}
    assert ran.code in wanted, ran.err


def test_a_file_that_is_not_there_is_a_usage_error(cli: Cli, tmp_path: Path) -> None:
    assert cli("conform", str(tmp_path / "nothing.jsonl")).code == ExitCode.USAGE
    assert cli("conform").code == ExitCode.USAGE
    assert cli("conform", str(tmp_path)).code == ExitCode.USAGE
    with pytest.raises(ConfigurationError):
        check_files([tmp_path / "nothing.jsonl"], print)
