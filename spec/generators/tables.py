"""Write the tables of spec/protocol.md from the code, or check that they agree with it.

Run from the repository root: ``python -m spec.generators.tables [--check]``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path

from draftwire.errors import ProtocolErrorCode
from draftwire.session.session_states import SESSION
from draftwire.wire import meanings, registry
from draftwire.wire.registry import Field, MessageType

PAGE = Path(__file__).parents[1] / "protocol.md"
BEGIN = "<!-- generated: begin -->"
END = "<!-- generated: end -->"

SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i32": 4, "f32": 4}
ENUMERATIONS: Sequence[type[IntEnum]] = (
    registry.WireVersion,
    registry.Role,
    registry.KeyPurpose,
    registry.Layout,
    registry.Adaptation,
    registry.HiddenDtype,
    registry.Outcome,
    registry.Status,
)
CONSTANTS = (
    ("magic", f"`{registry.MAGIC.decode()}`"),
    ("header bytes", registry.HEADER_BYTES),
    ("trailer bytes", registry.TRAILER_BYTES),
    ("frame MAC bytes", registry.FRAME_MAC_BYTES),
    ("label of a key's use", f"`{registry.KEY_LABEL.decode()}`"),
    ("M, tickets", registry.TOTAL),
    ("B, weight bits", registry.WEIGHT_BITS),
    ("b, word bits", registry.WORD_BITS),
    ("q_semantic", f"`{registry.Q_SEMANTIC}`"),
    ("verifier_semantic", f"`{registry.VERIFIER_SEMANTIC}`"),
    ("rng_abi", f"`{registry.RNG_ABI}`"),
    ("precision", f"`{registry.PRECISION}`"),
    ("id of a pad entry", registry.PAD_ID),
    ("largest vocabulary", registry.MAX_VOCABULARY),
    ("largest depth", registry.MAX_DEPTH),
    ("smallest temperature above 0", "2^-14"),
    ("largest temperature", "2^14"),
    ("largest processor_bytes", registry.MAX_PROCESSOR_BYTES),
    ("most processors of a STEP", registry.MAX_PROCESSORS),
    ("most ids of an n-gram or a sequence", registry.MAX_SEQUENCE),
    ("largest penalty or bias", "2^14"),
    ("most layers of a row of states", registry.MAX_STATE_LAYERS),
)
TAILS = {
    MessageType.HELLO: "then, from a drafter that has STATES, the table below with the layers"
    " behind its first field (P36)",
    MessageType.STEP: "then `token_count` x i32, then `hidden_rows` rows of states (P37), then"
    " `processor_bytes` bytes of processors (P34)",
    MessageType.REPLY: "then `depth` rows: the table below, then the q of the row",
}


def size_of(kind: str) -> int:
    """Return the bytes of a field of this kind."""
    digits = re.fullmatch(r"(?:bytes|text)(\d+)", kind)
    return int(digits[1]) if digits else SIZES[kind]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of one table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def field_table(fields: Sequence[Field], *, offsets: bool = True) -> Iterator[str]:
    """Yield the lines of a payload's fields with their offsets, where those are fixed."""
    offset = 0
    rows = []
    for field in fields:
        rows.append((offset, f"`{field.name}`", field.kind, field.meaning))
        offset += size_of(field.kind)
    head = ("offset", "field", "type", "meaning")
    yield from table(head, rows) if offsets else table(head[1:], (row[1:] for row in rows))


def lines() -> Iterator[str]:
    """Yield everything between the two markers."""
    yield "### Constants"
    yield ""
    yield from table(("name", "value"), CONSTANTS)
    yield "### Messages"
    yield ""
    yield from table(
        ("type", "name", "sent by", "fixed bytes", "meaning"),
        (
            (
                int(kind),
                kind.name,
                ", ".join(role.name.lower() for role in sorted(registry.SENDERS[kind])),
                sum(size_of(field.kind) for field in registry.PAYLOAD_FIELDS[kind]),
                meanings.MESSAGE_MEANINGS[kind],
            )
            for kind in MessageType
        ),
    )
    for kind in MessageType:
        if kind is MessageType.PONG:
            continue
        yield f"### {'PING and PONG' if kind is MessageType.PING else kind.name}"
        yield ""
        yield from field_table(registry.PAYLOAD_FIELDS[kind])
        if kind in TAILS:
            yield TAILS[kind] + "."
            yield ""
        if kind is MessageType.HELLO:
            yield "What a drafter reads:"
            yield ""
            yield from field_table(registry.HELLO_STATES_FIELDS, offsets=False)
        if kind is MessageType.REPLY:
            yield "A row of REPLY:"
            yield ""
            yield from field_table(registry.POSITION_FIELDS)
    yield "### A processor"
    yield ""
    yield "`kind` u16, `count` u16, then the fields of the kind, then its items (P34)."
    yield ""
    yield from table(
        ("kind", "name", "fields", "items"),
        (
            (
                int(kind),
                kind.name,
                ", ".join(f"`{each.name}` {each.kind}: {each.meaning}" for each in fields),
                registry.PROCESSOR_ITEMS[kind],
            )
            for kind, fields in registry.PROCESSOR_FIELDS.items()
        ),
    )
    yield "### Enumerations"
    yield ""
    yield from table(
        ("enumeration", "values"),
        (
            (entry.__name__, ", ".join(f"{int(member)} {member.name}" for member in entry))
            for entry in ENUMERATIONS
        ),
    )
    yield "### Error codes"
    yield ""
    yield from table(
        ("code", "name", "meaning"),
        ((int(code), code.name, meanings.ERROR_MEANINGS[code]) for code in ProtocolErrorCode),
    )
    yield "### States of a session"
    yield ""
    yield "The same for both roles. An input without an entry is `UNEXPECTED_MESSAGE`."
    yield ""
    yield from SESSION.markdown().splitlines()
    yield ""


def rewritten(page: str) -> str:
    """Return the page with its tables as the code says; raises ValueError without markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no '{BEGIN}' ... '{END}'")
    return before + begin + "\n\n" + "\n".join(lines()) + "\n" + end + after


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if they differ")
    check: bool = parser.parse_args(arguments).check
    text = page.read_text(encoding="utf-8")
    due = rewritten(text)
    if due == text:
        return 0
    if check:
        print(f"{page} is not what the code says: run `make spec`", file=sys.stderr)
        return 1
    page.write_text(due, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
