"""What two HELLOs agree on, rules P5, P7 and P8 of spec/protocol.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec.oracle.frames import HIDDEN_ITEM_BYTES, LAYOUTS, Refused, table_bytes
from spec.oracle.messages import FUSED, MIRROR, STATES, reply_bytes, row_elements
from spec.oracle.processors import MOST_PROCESSOR_BYTES

Hello = Mapping[str, Any]

EQUAL = (
    "vocab_size",
    "q_semantic",
    "verifier_semantic",
    "rng_abi",
    "precision",
    "id_map_hash",
    "tokenizer_hash",
    "shard_count",
)
SMALLER = (
    "max_sessions",
    "max_slots",
    "max_depth",
    "max_support",
    "max_context",
    "max_step_bytes",
    "max_reply_bytes",
    "hidden_rows",
)
OR_ANY = {"adaptation": 0, "draft_identity": bytes(32), "target_identity": bytes(32)}


def require(holds: bool, field: str) -> None:
    """Refuse the HELLO, naming the field, where a rule does not hold."""
    if not holds:
        raise Refused("HELLO_REFUSED", field)


def agree(verifier: Hello, drafter: Hello) -> dict[str, Any]:
    """The agreed limits, or the refusal that names the field (P7, P8)."""
    require(verifier["role"] == 1 and drafter["role"] == 2, "role")
    limits: dict[str, Any] = {}
    for field in EQUAL:
        require(verifier[field] == drafter[field], field)
        limits[field] = verifier[field]
    for field in SMALLER:
        limits[field] = min(verifier[field], drafter[field])
    limits["layouts"] = verifier["layouts"] & drafter["layouts"]
    require(limits["layouts"] != 0, "layouts")
    agree_features(verifier, drafter, limits)
    limits["version"] = 1 if limits["layouts"] == 1 else 2
    for field, anything in OR_ANY.items():
        named = {verifier[field], drafter[field]} - {anything}
        require(len(named) <= 1, field)
        limits[field] = named.pop() if named else anything
    for field, chosen in (("hidden_dtype", verifier), ("hidden_width", drafter)):
        equal = limits["features"] & STATES or verifier[field] == drafter[field]
        require(not limits["hidden_rows"] or bool(equal), field)
        limits[field] = chosen[field] if limits["hidden_rows"] else 0
    check_sizes(limits)
    return limits


def agree_features(verifier: Hello, drafter: Hello, limits: dict[str, Any]) -> None:
    """P33, P36: the features of both; without STATES of both no rows are fused, or of states."""
    one, other = verifier.get("features", 0), drafter.get("features", 0)
    limits["features"] = features = one & other
    if not features & STATES:
        limits["features"] &= ~FUSED
        if (one | other) & STATES:
            limits["hidden_rows"] = 0
        return
    limits["hidden_layers"] = list(drafter["hidden_layers"])
    limits["projection"] = drafter["projection"] if features & FUSED else b""


def check_sizes(limits: Mapping[str, Any]) -> None:
    """P8: what was agreed can carry its own messages."""
    sparse = limits["layouts"] >> LAYOUTS["SPARSE"] & 1
    require(not sparse or limits["max_support"] > 0, "max_support")
    require(limits["max_depth"] < limits["max_context"], "max_context")
    widths = {"IDS_ONLY": 0, "DENSE": limits["vocab_size"], "SPARSE": limits["max_support"]}
    largest_reply = max(
        reply_bytes(layout, widths[name], limits["max_depth"])
        for name, layout in LAYOUTS.items()
        if limits["layouts"] >> layout & 1
    )
    require(largest_reply <= limits["max_reply_bytes"], "max_reply_bytes")
    row_bytes = HIDDEN_ITEM_BYTES[limits["hidden_dtype"]] * row_elements(limits)
    step = table_bytes("STEP") + 4 * limits["max_context"] + limits["hidden_rows"] * row_bytes
    step += MOST_PROCESSOR_BYTES if limits["features"] & MIRROR else 0
    require(step <= limits["max_step_bytes"], "max_step_bytes")
