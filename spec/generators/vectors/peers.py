"""Both sides of a conversation as the oracle would hold it: what each sends, byte for byte.

A table gives a row by the last token of the context ("*" for the others).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from spec.generators.vectors.form import as_binary32
from spec.generators.vectors.frames import DENSE, DRAFTER, HELLO, IDS_ONLY, SPARSE, TOTAL, frame
from spec.oracle import decisions
from spec.oracle.agreement import SMALLER, agree
from spec.oracle.arithmetic import quantise
from spec.oracle.frames import crc32c, table_bytes, write_fields
from spec.oracle.messages import write_reply, write_row, write_step
from spec.oracle.words import PROPOSAL, TARGET_ONLY, key_of, words_at

Fields = dict[str, Any]
Table = Mapping[str, Sequence[float]]

VERIFIER_HELLO: Fields = {
    **HELLO,
    "max_slots": 2,
    "max_sessions": 2,
    "max_context": 24,
    "hidden_rows": 0,
    "hidden_dtype": 0,
    "hidden_width": 0,
}
DRAFTER_HELLO: Fields = {
    **DRAFTER,
    "max_sessions": 2,
    "max_slots": 2,
    "max_context": 24,
    "max_step_bytes": table_bytes("STEP") + 4 * 24,
    "max_reply_bytes": 256,
}
VERIFIER_HELLO_V1 = {**VERIFIER_HELLO, "layouts": 1}
DRAFTER_HELLO_V1 = {**DRAFTER_HELLO, "layouts": 1, "max_reply_bytes": 128}
LIMITS = agree(VERIFIER_HELLO, DRAFTER_HELLO)
ANSWERED = (*SMALLER, "layouts", "hidden_dtype", "hidden_width", "adaptation")
IDENTITIES = ("draft_identity", "target_identity")

LOGITS: Table = {
    "*": [0.5, 0.25, -1.0, 1.5, 0.0, -0.5],
    "0": [2.0, -2.0, 0.125, 0.0, -8.0, 1.0],
    "3": [-1.0, 0.75, 0.75, 0.75, -30.0, -2.0],
    "5": [0.0, 3.0, -1.0, -1.0, 0.0, 0.0],
}
TARGET: Mapping[str, Sequence[int]] = {
    "*": [4, 3, 1, 6, 2, 2],
    "0": [5, 0, 2, 2, 0, 3],
    "3": [0, 4, 4, 2, 1, 1],
}


def row_of(table: Mapping[str, Any], context: Sequence[int]) -> Any:
    """The row after a context."""
    return table.get(str(context[-1]), table["*"])


def digest(tokens: Sequence[int]) -> bytes:
    """prefix_digest: BLAKE2b-128 of the tokens as int32."""
    return hashlib.blake2b(struct.pack(f"<{len(tokens)}i", *tokens), digest_size=16).digest()


def hello_frame(hello: Fields) -> bytes:
    """A HELLO in the version of its layouts."""
    return frame("HELLO", write_fields("HELLO", hello), 1 if hello["layouts"] == 1 else 2)


def answer_frame(verifier: Fields, drafter: Fields) -> bytes:
    """The drafter's HELLO with the agreed values."""
    limits = agree(verifier, drafter)
    return hello_frame({**drafter, **{name: limits[name] for name in (*ANSWERED, *IDENTITIES)}})


def step_of(
    tokens: Sequence[int],
    *,
    session: int = 7,
    slot: int = 0,
    generation: int = 1,
    round_: int = 1,
    base: int = 0,
    rider: tuple[int, int, int] = (0, 0, 0),
    layout: int = SPARSE,
    depth: int = 3,
    temperature: float = 0.75,
    support: int = 4,
    top_k: int = 0,
    seed: int = 1,
) -> Fields:
    """A STEP whose committed prefix is ``tokens``; rider = (round, accepted, outcome)."""
    low, high = key_of(seed, 0, PROPOSAL)
    return {
        "session": session,
        "slot": slot,
        "layout": layout,
        "committed_round": rider[0],
        "committed_accepted": rider[1],
        "committed_outcome": rider[2],
        "generation": generation,
        "round": round_,
        "anchor": len(tokens) - 1,
        "first_position": len(tokens),
        "depth": depth,
        "temperature": 0.0 if layout == IDS_ONLY else temperature,
        "top_k": top_k,
        "top_p": TOTAL,
        "min_p": 0,
        "support": support if layout == SPARSE else 0,
        "context_version": 0,
        "proposal_key": 0 if layout == IDS_ONLY else low | high << 32,
        "prefix_digest": digest(tokens),
        "base": base,
        "hidden_rows": 0,
        "prefix": list(tokens),
    }


def version_of(step: Fields) -> int:
    """The wire version that carries a step's layout."""
    return 1 if step["layout"] == IDS_ONLY else 2


def step_frame(step: Fields) -> bytes:
    """The bytes of a STEP."""
    return frame("STEP", write_step(step, step["prefix"][step["base"] :]), version_of(step))


def proposal_of(step: Fields, logits: Table = LOGITS) -> list[tuple[int, list[int]]]:
    """The K drafts and the counts that each was drawn from."""
    key = (step["proposal_key"] & 0xFFFFFFFF, step["proposal_key"] >> 32)
    context = list(step["prefix"])
    drafted = []
    for _ in range(step["depth"]):
        row = [as_binary32(z) for z in row_of(logits, context)]
        counts = quantise(
            row, Fraction(step["temperature"]), top_k=step["top_k"], limit=step["support"]
        )
        words = words_at(key, step["generation"], step["round"], len(context))
        token = decisions.draw(counts, words)
        drafted.append((token, counts))
        context.append(token)
    return drafted


def reply_payload(step: Fields, proposal: Sequence[tuple[int, list[int]]], **changes: Any) -> bytes:
    """The payload of the REPLY to a step; ``changes`` replace fields of its head."""
    layout, first = step["layout"], step["first_position"]
    vocab_size = len(proposal[0][1])
    width = vocab_size if layout == DENSE else step["support"]
    head = {
        **step,
        "shard_index": 0,
        "shard_count": 1,
        "shard_begin": 0,
        "shard_end": vocab_size,
        "support": width,
        **changes,
    }
    rows = [
        write_row(first + i, token, counts, layout, width)
        for i, (token, counts) in enumerate(proposal)
    ]
    return write_reply(head, rows)


def complete_frame(step: Fields, payload: bytes = b"", status: int = 0, **changes: Any) -> bytes:
    """COMPLETE of a reply, or without one where ``status`` says why."""
    whole = {"status": status, "reply_bytes": 0, "reply_checksum": 0}
    if status == 0:
        whole |= {"reply_bytes": len(payload), "reply_checksum": crc32c(payload)}
    return frame(
        "COMPLETE", write_fields("COMPLETE", {**step, **whole, **changes}), version_of(step)
    )


def answer_of(step: Fields, logits: Table = LOGITS) -> bytes:
    """REPLY and COMPLETE."""
    payload = reply_payload(step, proposal_of(step, logits))
    return frame("REPLY", payload, version_of(step)) + complete_frame(step, payload)


def verdict_of(step: Fields, seed: int = 1) -> decisions.Verdict:
    """How the round of a step ends, by the target's table and the request's words."""
    proposal = proposal_of(step)
    drafts = [token for token, _ in proposal]
    prefix = step["prefix"]
    rows = [row_of(TARGET, [*prefix, *drafts[:i]]) for i in range(len(drafts) + 1)]
    counts = [row for _, row in proposal]

    def words(position: int, domain: int) -> Any:
        return words_at(key_of(seed, 0, domain), step["generation"], step["round"], position)

    weights = [[Fraction(a) for a in row] for row in rows]
    return decisions.verify(weights, drafts, counts, words, step["first_position"])


def lone_token(step: Fields, seed: int = 1) -> int:
    """The token of a target-only round in the place of a step's proposal."""
    words = words_at(
        key_of(seed, 0, TARGET_ONLY), step["generation"], step["round"], step["first_position"]
    )
    return decisions.sample([Fraction(a) for a in row_of(TARGET, step["prefix"])], words)


def committed_by(step: Fields, accepted: int, token: int | None) -> list[int]:
    """The prefix after a round."""
    drafts = [draft for draft, _ in proposal_of(step)][:accepted]
    return [*step["prefix"], *drafts, *([] if token is None else [token])]


def commit_frame(step: Fields, accepted: int, outcome: int, token: int | None) -> bytes:
    """An explicit COMMIT of a step's round."""
    after = committed_by(step, accepted, token)
    fields = {
        **step,
        "outcome": outcome,
        "accepted": accepted,
        "token": -1 if token is None else token,
        "committed": len(after),
        "prefix_digest": digest(after),
    }
    return frame("COMMIT", write_fields("COMMIT", fields), version_of(step))


def cancel_frame(session: int = 7, generation: int = 1) -> bytes:
    """CANCEL."""
    return frame("CANCEL", write_fields("CANCEL", {"session": session, "generation": generation}))


def reset_frame(session: int = 7, generation: int = 1, following: int = 2) -> bytes:
    """RESET."""
    fields = {"session": session, "generation": generation, "next_generation": following}
    return frame("RESET", write_fields("RESET", fields))


def error_frame(
    code: int, step: Mapping[str, Any] | None = None, field: str = "", version: int = 2
) -> bytes:
    """ERROR of a step's session, or of the connection."""
    named = step or {"session": 0, "generation": 0, "round": 0}
    fields = {name: named[name] for name in ("session", "generation", "round")}
    return frame("ERROR", write_fields("ERROR", {**fields, "code": code, "field": field}), version)
