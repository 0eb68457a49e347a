"""What a payload means and must keep to, rules P3, P5, P12 and P14 of spec/protocol.md.

``limits`` are the agreed fields of HELLO by name, with ``version`` besides. A message is the dict
of its fields; STEP has ``tokens`` and ``hidden`` too, REPLY has ``rows``, each a dict with ``q``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from spec.oracle.frames import (
    HIDDEN_ITEM_BYTES,
    LAYOUTS,
    TABLES,
    TOTAL,
    Frame,
    Refused,
    crc32c,
    read_fields,
    table,
    table_bytes,
    write_fields,
)
from spec.oracle.processors import MOST_PROCESSOR_BYTES, read_processors

Message = dict[str, Any]
Limits = Mapping[str, Any]

IDS_ONLY, DENSE, SPARSE = LAYOUTS["IDS_ONLY"], LAYOUTS["DENSE"], LAYOUTS["SPARSE"]
MIRROR, STATES, EARLY_STOP, FUSED = 1, 2, 8, 16  # the feature bits (P33)
MOST_LAYERS = 64
STATE_DTYPES = {2: 8, 3: 8}  # bits of the exponent of bfloat16 and of binary32
OUTCOMES = {"NONE": 0, "CORRECTION": 1, "BONUS": 2, "TARGET_ONLY": 3, "ENDED": 4}
STATUSES = range(6)
ERROR_CODES = frozenset(
    [*range(1, 10), *range(16, 19), *range(32, 36), *range(48, 61), *range(80, 91), *range(96, 104)]
)
FIELD_NAMES = {"", *(field for name in TABLES for field, _ in table(name))}


def refuse_unless(holds: bool, code: str, field: str) -> None:
    """Refuse with ``code`` where a rule does not hold."""
    if not holds:
        raise Refused(code, field)


def within(message: Message, field: str, least: int, most: int) -> None:
    """Below ``least`` a field has no meaning; above ``most`` it is over a limit."""
    refuse_unless(message[field] >= least, "BAD_FIELD", field)
    refuse_unless(message[field] <= most, "LIMIT_EXCEEDED", field)


# Sizes (P12) -------------------------------------------------------------------------------------


def q_bytes(layout: int, width: int) -> int:
    """Bytes of one row's q; width is that of the shard (dense) or the support K (sparse)."""
    return {IDS_ONLY: 0, DENSE: 4 * width, SPARSE: 8 * width}[layout]


def reply_bytes(layout: int, width: int, depth: int) -> int:
    """Payload bytes of a REPLY."""
    return table_bytes("REPLY") + depth * (table_bytes("POSITION") + q_bytes(layout, width))


BY_BOTH = ("HELLO", "ERROR", "PING", "PONG")
SENT_BY = {
    "verifier": (*BY_BOTH, "STEP", "COMMIT", "RESET", "CANCEL"),
    "drafter": (*BY_BOTH, "REPLY", "COMPLETE"),
}


def bounds(limits: Limits, sender: str = "") -> dict[str, int]:
    """P2: the largest payload of each type after agreement; of both senders, or of one."""
    names = SENT_BY[sender] if sender else (*SENT_BY["verifier"], *SENT_BY["drafter"])
    agreed = {"STEP": limits["max_step_bytes"], "REPLY": limits["max_reply_bytes"]}
    agreed["HELLO"] = table_bytes("HELLO") if sender == "verifier" else LARGEST_HELLO
    return {name: agreed.get(name, table_bytes(name)) for name in names}


LARGEST_HELLO = table_bytes("HELLO") + 2 + 2 * MOST_LAYERS + 32
BOUNDS_BEFORE_HELLO = {"HELLO": LARGEST_HELLO, "ERROR": table_bytes("ERROR")}
BOUNDS_BEFORE_NONCE = {name: table_bytes(name) for name in ("CHALLENGE", "ERROR")}
BOUNDS_BEFORE_PROOF = {name: table_bytes(name) for name in ("PROOF", "ERROR")}


# Reading -----------------------------------------------------------------------------------------


def read_message(frame: Frame, limits: Limits | None) -> Message:
    """The message of a frame, or the refusal that P3 asks for; ``limits`` is None before HELLO."""
    message, tail = read_fields(frame.type, frame.payload, unused_field(frame, limits))
    checked: Message = dict(message)
    if frame.type not in ("HELLO", "STEP", "REPLY"):
        refuse_unless(not tail, "BAD_LENGTH", "")
    if frame.type == "HELLO":
        check_hello(checked, frame.version)
        check_states(checked, tail)
    elif frame.type == "ERROR":
        refuse_unless(checked["code"] in ERROR_CODES, "BAD_FIELD", "code")
        refuse_unless(checked["field"] in FIELD_NAMES, "BAD_FIELD", "field")
    elif frame.type in ("CHALLENGE", "PROOF"):
        pass  # any 32 bytes
    elif limits is None:
        raise Refused("UNEXPECTED_MESSAGE")
    else:
        for field in ("session", "generation", "round"):
            refuse_unless(checked.get(field) != 0, "BAD_FIELD", field)
        if frame.type != "STEP":
            check_slot(checked, limits)
        CHECKS[frame.type](checked, tail, limits)
    return checked


def unused_field(frame: Frame, limits: Limits | None) -> str:
    """P33: the field that is reserved where no feature that uses it is agreed."""
    if frame.type == "HELLO" and frame.version == 1:
        return "features"
    if frame.type == "STEP" and not (limits is not None and limits.get("features", 0) & MIRROR):
        return "processor_bytes"
    if frame.type == "REPLY" and not (
        limits is not None and limits.get("features", 0) & EARLY_STOP
    ):
        return "admitted"
    return ""


def check_slot(message: Message, limits: Limits) -> None:
    """A slot, where a message has one, is one of those agreed."""
    if "slot" in message:
        within(message, "slot", 0, limits["max_slots"] - 1)


def check_hello(hello: Message, version: int) -> None:
    """HELLO: enumerations known, layouts those of the version, limits above zero."""
    refuse_unless(hello["role"] in (1, 2), "BAD_FIELD", "role")
    refuse_unless(hello["adaptation"] in (0, 1, 2), "BAD_FIELD", "adaptation")
    layouts = hello["layouts"]
    refuse_unless(layouts < 8, "BAD_FIELD", "layouts")
    allowed = (1,) if version == 1 else (2, 4, 6)
    refuse_unless(layouts in allowed, "WRONG_VERSION_FOR_LAYOUT", "layouts")
    within(hello, "vocab_size", 1, 1 << 24)
    for field in ("max_sessions", "max_slots", "max_context", "max_step_bytes", "max_reply_bytes"):
        refuse_unless(hello[field] > 0, "BAD_FIELD", field)
    within(hello, "max_depth", 1, 64)
    within(hello, "shard_count", 1, hello["vocab_size"])
    within(hello, "max_support", 0, hello["vocab_size"])
    refuse_unless(hello["hidden_dtype"] in HIDDEN_ITEM_BYTES, "BAD_FIELD", "hidden_dtype")
    row_bytes = HIDDEN_ITEM_BYTES[hello["hidden_dtype"]] * hello["hidden_width"]
    refuse_unless(not hello["hidden_rows"] or row_bytes > 0, "BAD_FIELD", "hidden_rows")
    if hello["features"] & STATES:
        refuse_unless(hello["hidden_rows"] > 0, "BAD_FIELD", "hidden_rows")
        refuse_unless(hello["hidden_dtype"] in STATE_DTYPES, "BAD_FIELD", "hidden_dtype")


def check_states(hello: Message, tail: bytes) -> None:
    """P36: behind the fields of a drafter that has STATES stand the layers that it reads."""
    if hello["role"] != 2 or not hello["features"] & STATES:
        refuse_unless(not tail, "BAD_LENGTH", "")
        return
    refuse_unless(len(tail) >= 2, "BAD_LENGTH", "")
    count = tail[0] + 256 * tail[1]
    refuse_unless(count > 0, "BAD_FIELD", "hidden_layers")
    refuse_unless(count <= MOST_LAYERS, "LIMIT_EXCEEDED", "hidden_layers")
    end = 2 + 2 * count
    digest = 32 if hello["features"] & FUSED else 0
    refuse_unless(len(tail) == end + digest, "BAD_LENGTH", "")
    layers = [tail[at] + 256 * tail[at + 1] for at in range(2, end, 2)]
    refuse_unless(layers == sorted(set(layers)), "BAD_FIELD", "hidden_layers")
    hello["hidden_layers"], hello["projection"] = layers, tail[end:]


def row_elements(limits: Limits) -> int:
    """P37: elements of a row of states; a fused one has those of a single layer."""
    raw = limits["features"] & STATES and not limits["features"] & FUSED
    return int(limits["hidden_width"] * (len(limits["hidden_layers"]) if raw else 1))


def all_finite(rows: bytes, dtype: int) -> bool:
    """Whether no element has an exponent of ones alone."""
    size = HIDDEN_ITEM_BYTES[dtype]
    bits = (int.from_bytes(rows[at : at + size], "little") for at in range(0, len(rows), size))
    ones = (1 << STATE_DTYPES[dtype]) - 1
    return all(value >> (8 * size - 9) & ones != ones for value in bits)


def check_layout(message: Message, limits: Limits) -> int:
    """The layout is known, of this version, and agreed."""
    layout = int(message["layout"])
    refuse_unless(layout in LAYOUTS.values(), "BAD_FIELD", "layout")
    ids_only = limits["version"] == 1
    refuse_unless((layout == IDS_ONLY) == ids_only, "WRONG_VERSION_FOR_LAYOUT", "layout")
    refuse_unless(bool(limits["layouts"] >> layout & 1), "LIMIT_EXCEEDED", "layout")
    return layout


def check_accepted(message: Message, field: str, outcome: int, limits: Limits) -> None:
    """Drafts accepted: at most the depth, and none in a round that had no proposal."""
    within(message, field, 0, limits["max_depth"])
    without = outcome in (OUTCOMES["NONE"], OUTCOMES["TARGET_ONLY"])
    refuse_unless(not (without and message[field]), "BAD_FIELD", field)


def check_step(step: Message, tail: bytes, limits: Limits) -> None:
    """STEP: policy, positions, commit rider, tokens, hidden-state rows."""
    layout = check_layout(step, limits)
    within(step, "depth", 1, limits["max_depth"])
    refuse_unless(math.isfinite(step["temperature"]), "BAD_FIELD", "temperature")
    temperature = Fraction(step["temperature"])
    usual = Fraction(1, 1 << 14) <= temperature <= 1 << 14
    zero = temperature == 0 and math.copysign(1, step["temperature"]) > 0
    refuse_unless(usual or zero, "BAD_FIELD", "temperature")
    within(step, "top_k", 0, limits["vocab_size"])
    within(step, "top_p", 1, TOTAL)
    within(step, "min_p", 0, TOTAL)
    if layout == SPARSE:
        within(step, "support", 1, limits["max_support"])
    else:
        refuse_unless(step["support"] == 0, "BAD_FIELD", "support")
    if layout == IDS_ONLY:
        for field in ("temperature", "top_k", "min_p", "proposal_key"):
            refuse_unless(step[field] == 0, "BAD_FIELD", field)
        refuse_unless(step["top_p"] == TOTAL, "BAD_FIELD", "top_p")
    check_slot(step, limits)
    length = step["anchor"] + 1
    refuse_unless(step["first_position"] == length, "BAD_FIELD", "first_position")
    refuse_unless(step["base"] + step["token_count"] == length, "BAD_FIELD", "token_count")
    outcome = step["committed_outcome"]
    refuse_unless(outcome in OUTCOMES.values(), "BAD_FIELD", "committed_outcome")
    rides = step["committed_round"] > 0
    refuse_unless(rides == (outcome != OUTCOMES["NONE"]), "BAD_FIELD", "committed_round")
    refuse_unless(step["committed_round"] < step["round"], "BAD_FIELD", "committed_round")
    check_accepted(step, "committed_accepted", outcome, limits)
    within(step, "hidden_rows", 0, limits["hidden_rows"])
    count, states = step["token_count"], limits.get("features", 0) & STATES
    if states and step["hidden_rows"]:
        refuse_unless(step["hidden_rows"] < count, "BAD_FIELD", "hidden_rows")
    within(step, "processor_bytes", 0, MOST_PROCESSOR_BYTES)
    row_bytes = HIDDEN_ITEM_BYTES[limits["hidden_dtype"]] * row_elements(limits)
    before = 4 * count + step["hidden_rows"] * row_bytes
    refuse_unless(len(tail) == before + step["processor_bytes"], "BAD_LENGTH", "")
    step["tokens"] = list(struct.unpack(f"<{count}i", tail[: 4 * count]))
    step["hidden"] = tail[4 * count : before]
    step["processors"] = tail[before:]
    inside = all(0 <= token < limits["vocab_size"] for token in step["tokens"])
    refuse_unless(inside, "ID_OUT_OF_RANGE", "token")
    finite = not states or all_finite(step["hidden"], limits["hidden_dtype"])
    refuse_unless(finite, "BAD_FIELD", "hidden_rows")
    read_processors(step["processors"], limits["vocab_size"])


def check_reply(reply: Message, tail: bytes, limits: Limits) -> None:
    """REPLY: the head, and rows cut at their fixed size; what they hold is P14's."""
    layout = check_layout(reply, limits)
    within(reply, "depth", 1, limits["max_depth"])
    refuse_unless(reply["admitted"] < reply["depth"], "BAD_FIELD", "admitted")
    count, begin, end = reply["shard_count"], reply["shard_begin"], reply["shard_end"]
    index, vocab_size = reply["shard_index"], limits["vocab_size"]
    refuse_unless(count == limits["shard_count"], "WRONG_SHARD", "shard_count")
    refuse_unless(index < count, "WRONG_SHARD", "shard_index")
    refuse_unless(begin <= end <= vocab_size, "WRONG_SHARD", "shard_end")
    refuse_unless(index > 0 or begin == 0, "WRONG_SHARD", "shard_begin")
    refuse_unless(index < count - 1 or end == vocab_size, "WRONG_SHARD", "shard_end")
    if layout == SPARSE:
        within(reply, "support", 1, limits["max_support"])
    else:
        width = end - begin if layout == DENSE else 0
        refuse_unless(reply["support"] == width, "BAD_FIELD", "support")
    whole = reply_bytes(layout, reply["support"], reply["depth"])
    refuse_unless(table_bytes("REPLY") + len(tail) == whole, "BAD_LENGTH", "")
    reply["rows"] = []
    size = q_bytes(layout, reply["support"])
    for _ in range(reply["depth"]):
        row, rest = read_fields("POSITION", tail)
        reply["rows"].append({**row, "q": rest[:size]})
        tail = rest[size:]


def check_complete(complete: Message, tail: bytes, limits: Limits) -> None:
    """COMPLETE: a reply's size with status OK, and none otherwise."""
    refuse_unless(complete["status"] in STATUSES, "BAD_FIELD", "status")
    if complete["status"] == 0:
        within(complete, "reply_bytes", reply_bytes(IDS_ONLY, 0, 1), limits["max_reply_bytes"])
    else:
        for field in ("reply_bytes", "reply_checksum"):
            refuse_unless(complete[field] == 0, "BAD_FIELD", field)


def check_commit(commit: Message, tail: bytes, limits: Limits) -> None:
    """COMMIT: an outcome of a round, and the token drawn in it unless the text had ended."""
    outcome = commit["outcome"]
    known = outcome in OUTCOMES.values() and outcome != OUTCOMES["NONE"]
    refuse_unless(known, "BAD_FIELD", "outcome")
    check_accepted(commit, "accepted", outcome, limits)
    if outcome == OUTCOMES["ENDED"]:
        refuse_unless(commit["token"] == -1, "BAD_FIELD", "token")
    else:
        inside = 0 <= commit["token"] < limits["vocab_size"]
        refuse_unless(inside, "ID_OUT_OF_RANGE", "token")
    refuse_unless(commit["committed"] > 0, "BAD_FIELD", "committed")


def check_reset(reset: Message, tail: bytes, limits: Limits) -> None:
    """RESET: generations rise."""
    rises = reset["next_generation"] > reset["generation"]
    refuse_unless(rises, "BAD_FIELD", "next_generation")


def check_nothing(message: Message, tail: bytes, limits: Limits) -> None:
    """CANCEL, PING and PONG have no rule of their own."""


CHECKS = {
    "STEP": check_step,
    "REPLY": check_reply,
    "COMPLETE": check_complete,
    "COMMIT": check_commit,
    "RESET": check_reset,
    "CANCEL": check_nothing,
    "PING": check_nothing,
    "PONG": check_nothing,
}


# The q's of a reply (P14) ------------------------------------------------------------------------


def read_rows(reply: Message, limits: Limits) -> list[list[int]]:
    """The counts of every row over the whole vocabulary: all heads are checked, then all q's."""
    vocab_size = limits["vocab_size"]
    whole = reply["shard_begin"] == 0 and reply["shard_end"] == vocab_size
    refuse_unless(whole, "WRONG_SHARD", "shard_end")
    for index, row in enumerate(reply["rows"]):
        due = reply["first_position"] + index
        refuse_unless(row["position"] == due, "WRONG_POSITION", "position")
        checksum = crc32c(row["q"]) if row["q"] else 0
        refuse_unless(row["checksum"] == checksum, "BAD_Q_CHECKSUM", "checksum")
        refuse_unless(0 <= row["token"] < vocab_size, "ID_OUT_OF_RANGE", "token")
        least, most = {
            IDS_ONLY: (0, 0),
            DENSE: (reply["support"], reply["support"]),
            SPARSE: (1, reply["support"]),
        }[reply["layout"]]
        refuse_unless(row["entries"] >= least, "MISSING_Q", "entries")
        refuse_unless(row["entries"] <= most, "WRONG_SIZE", "entries")
    return [read_q(row, reply["layout"], reply["support"], vocab_size) for row in reply["rows"]]


def read_q(row: Message, layout: int, support: int, vocab_size: int) -> list[int]:
    """The counts of one row, or the first rule that its q breaks."""
    if layout == IDS_ONLY:
        return [TOTAL if v == row["token"] else 0 for v in range(vocab_size)]
    if layout == DENSE:
        counts = [tickets(row["q"][4 * v : 4 * v + 4]) for v in range(vocab_size)]
    else:
        counts = read_sparse(row["q"], row["entries"], support, vocab_size)
    refuse_unless(sum(counts) == TOTAL, "WRONG_MASS", "q")
    refuse_unless(counts[row["token"]] > 0, "ZERO_Q_AT_TOKEN", "token")
    return counts


def read_sparse(q: bytes, entries: int, support: int, vocab_size: int) -> list[int]:
    """Ids in use first, then their q's, then the pads."""
    ids = struct.unpack(f"<{support}i", q[: 4 * support])
    values = [q[4 * support + 4 * i :][:4] for i in range(support)]
    for i in range(entries):
        refuse_unless(0 <= ids[i] < vocab_size, "ID_OUT_OF_RANGE", "q")
        refuse_unless(i == 0 or ids[i] != ids[i - 1], "DUPLICATE_ID", "q")
        refuse_unless(i == 0 or ids[i] > ids[i - 1], "UNSORTED_SUPPORT", "q")
    counts = [0] * vocab_size
    for i in range(entries):
        counts[ids[i]] = tickets(values[i])
        refuse_unless(counts[ids[i]] > 0, "ZERO_COUNT_ENTRY", "q")
    for i in range(entries, support):
        refuse_unless(ids[i] == -1 and values[i] == bytes(4), "NONZERO_PADDING", "q")
    return counts


def tickets(binary32: bytes) -> int:
    """The whole number of tickets that a binary32 q stands for."""
    value = struct.unpack("<f", binary32)[0]
    refuse_unless(math.isfinite(value), "NON_FINITE_Q", "q")
    refuse_unless(value != 0 or math.copysign(1, value) > 0, "NEGATIVE_ZERO_Q", "q")
    refuse_unless(value >= 0, "NEGATIVE_Q", "q")
    number = Fraction(value) * TOTAL
    refuse_unless(number.denominator == 1, "NON_DYADIC_Q", "q")
    return int(number)


# Writing -----------------------------------------------------------------------------------------


def write_hello(hello: Mapping[str, Any]) -> bytes:
    """The payload of a HELLO, with the layers behind it where its drafter has STATES (P36)."""
    head = write_fields("HELLO", {**hello})
    if hello["role"] != 2 or not hello.get("features", 0) & STATES:
        return head
    layers: Sequence[int] = hello["hidden_layers"]
    projection: bytes = hello["projection"]
    return head + struct.pack(f"<{len(layers) + 1}H", len(layers), *layers) + projection


def write_step(
    step: Mapping[str, Any], tokens: Sequence[int], hidden: bytes = b"", processors: bytes = b""
) -> bytes:
    """The payload of a STEP; ``token_count`` and ``processor_bytes`` follow from what comes."""
    sizes = {"token_count": len(tokens), "processor_bytes": len(processors)}
    head = write_fields("STEP", {**step, **sizes})
    return head + struct.pack(f"<{len(tokens)}i", *tokens) + hidden + processors


def write_q(counts: Sequence[int], layout: int, support: int) -> bytes:
    """P12: one row's q at its fixed size."""
    if layout == IDS_ONLY:
        return b""
    if layout == DENSE:
        return struct.pack(f"<{len(counts)}f", *(count / TOTAL for count in counts))
    ids = [v for v, count in enumerate(counts) if count]
    pads = support - len(ids)
    values = [counts[v] / TOTAL for v in ids]
    return struct.pack(f"<{support}i{support}f", *ids, *[-1] * pads, *values, *[0.0] * pads)


def write_row(
    position: int, token: int, counts: Sequence[int], layout: int, support: int
) -> Message:
    """One row of a REPLY, as :func:`write_reply` takes it."""
    q = write_q(counts, layout, support)
    entries = {IDS_ONLY: 0, DENSE: len(counts), SPARSE: sum(count > 0 for count in counts)}[layout]
    return {
        "position": position,
        "token": token,
        "entries": entries,
        "checksum": crc32c(q) if q else 0,
        "q": q,
    }


def write_reply(reply: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The payload of a REPLY; ``depth`` follows from the rows, and all are admitted by default."""
    written = [write_fields("POSITION", row) + row["q"] for row in rows]
    return write_fields("REPLY", {"admitted": 0, **reply, "depth": len(written)}) + b"".join(
        written
    )
