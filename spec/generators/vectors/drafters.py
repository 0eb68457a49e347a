"""Vectors of whole conversations with a drafter: bytes in, bytes out (P6, P9 to P17)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spec.generators.vectors import peers
from spec.generators.vectors.form import Vector, binary32
from spec.generators.vectors.frames import DENSE, IDS_ONLY, frame
from spec.generators.vectors.peers import (
    DRAFTER_HELLO,
    DRAFTER_HELLO_V1,
    LOGITS,
    VERIFIER_HELLO,
    VERIFIER_HELLO_V1,
    answer_of,
    committed_by,
    complete_frame,
    error_frame,
    proposal_of,
    step_frame,
    step_of,
    verdict_of,
)
from spec.oracle.frames import write_fields

Fields = dict[str, Any]

PROMPT = [4, 0, 5]
CORRECTION, BONUS, ALONE, ENDED = 1, 2, 3, 4
OUTCOMES = {"correction": CORRECTION, "bonus": BONUS}
DUPLICATE_ROUND, WRONG_DIGEST, UNKNOWN_PREFIX, COMMIT_MISMATCH = 88, 85, 97, 98
NO_SLOT, LIMIT_EXCEEDED, UNEXPECTED, HELLO_REFUSED = 99, 18, 33, 32
BAD_MAGIC, BAD_PAYLOAD, BAD_FIELD = 1, 6, 16

NAN_LOGITS = {**LOGITS, "1": [float("nan")] * 6}


def drafter(
    note: str,
    *exchange: tuple[bytes, bytes],
    v1: bool = False,
    closed: bool = False,
    logits: peers.Table = LOGITS,
) -> Vector:
    """A conversation after both HELLOs; the last answer closes the connection if ``closed``."""
    verifier = VERIFIER_HELLO_V1 if v1 else VERIFIER_HELLO
    own = DRAFTER_HELLO_V1 if v1 else DRAFTER_HELLO
    greeting = (peers.hello_frame(verifier), peers.answer_frame(verifier, own))
    return conversation(note, own, [greeting, *exchange], closed=closed, logits=logits)


def conversation(
    note: str,
    own: Fields,
    exchange: list[tuple[bytes, bytes]],
    *,
    closed: bool,
    logits: peers.Table = LOGITS,
) -> Vector:
    """What goes in and what must come out."""
    return {
        "op": "drafter",
        "note": note,
        "hello": write_fields("HELLO", own).hex(),
        "logits": {context: binary32(row) for context, row in logits.items()},
        "exchange": [{"in": given.hex(), "out": due.hex()} for given, due in exchange],
        "closed": closed,
    }


def asked(step: Fields, logits: peers.Table = LOGITS) -> tuple[bytes, bytes]:
    """A step and its answer."""
    return step_frame(step), answer_of(step, logits)


def following(step: Fields, **changes: Any) -> Fields:
    """The step after a round that ended as the target's words say."""
    verdict = verdict_of(step)
    prefix = committed_by(step, verdict.accepted, verdict.token)
    settings: Fields = {name: step[name] for name in ("session", "slot", "generation", "layout")}
    settings |= {
        "round_": step["round"] + 1,
        "base": len(prefix) - 1,
        "rider": (step["round"], verdict.accepted, OUTCOMES[verdict.outcome]),
    }
    return step_of(prefix, **{**settings, **changes})


def rounds_of_a_drafter() -> Iterator[Vector]:
    """Rounds that go well."""
    for note, layout in (("sparse", 2), ("dense", DENSE), ("ids only", IDS_ONLY)):
        first = step_of(PROMPT, layout=layout)
        second = following(first)
        third = following(second)
        verdict = verdict_of(third)
        ended = peers.commit_frame(
            third, verdict.accepted, OUTCOMES[verdict.outcome], verdict.token
        )
        exchange = [asked(first), asked(second), asked(third), (ended, b"")]
        yield drafter(f"three rounds and a commit, {note}", *exchange, v1=layout == IDS_ONLY)
    first = step_of(PROMPT)
    answer = answer_of(first)
    again = (step_frame(first), answer)
    yield drafter("a retry is answered by the same bytes", asked(first), again, again)
    alone = [*PROMPT, 1]
    later = step_of(alone, round_=2, base=3, rider=(1, 0, ALONE))
    yield drafter("a reply that was given up", asked(first), asked(later))
    skipped = [*PROMPT, 1, 2, 3]
    later = step_of(skipped, round_=5, base=3, rider=(4, 0, ALONE))
    yield drafter("rounds that never came here", asked(first), asked(later))
    repeated = following(first, base=0)
    yield drafter("everything is sent again", asked(first), asked(repeated))
    greedy = step_of(PROMPT, temperature=0.0)
    yield drafter("greedy drafts", asked(greedy), asked(following(greedy, temperature=0.0)))
    narrow = step_of(PROMPT, top_k=2, support=3, depth=4)
    yield drafter("top_k inside the support", asked(narrow))
    drafts = [token for token, _ in proposal_of(first)]
    told = peers.commit_frame(first, 2, ENDED, None)
    more = step_of([*PROMPT, *drafts[:2]], round_=2, base=5, rider=(1, 2, ENDED))
    yield drafter("a text that ended and goes on", asked(first), (told, b""), asked(more))
    ping = frame("PING", write_fields("PING", {"nonce": 77}))
    pong = frame("PONG", write_fields("PONG", {"nonce": 77}))
    yield drafter("PING", (ping, pong), asked(first), (ping, pong))


def lives_of_a_drafter() -> Iterator[Vector]:
    """Generations, cancels, limits."""
    first = step_of(PROMPT)
    second = step_of([*PROMPT, 2], generation=2)
    old = (peers.cancel_frame(generation=1), b"")
    third = following(second)
    yield drafter(
        "L26: a late CANCEL of the old generation", asked(first), asked(second), old, asked(third)
    )
    end = (peers.cancel_frame(), b"")
    yield drafter("cancelled, then asked once more", asked(first), end, (step_frame(first), b""))
    other = step_of(PROMPT, session=8, slot=1)
    yield drafter("a new session after a CANCEL", asked(first), end, asked(other))
    reset = (peers.reset_frame(), b"")
    yield drafter("RESET, then a new generation", asked(first), reset, asked(second))
    late = (peers.commit_frame(first, 0, ALONE, 1), b"")
    yield drafter("a COMMIT of an old generation", asked(first), asked(second), late, asked(third))
    yield drafter("a STEP of an old generation", asked(second), (step_frame(first), b""))
    both = step_frame(first) + step_frame(step_of(PROMPT, session=8, slot=1, seed=2))
    answers = answer_of(first) + answer_of(step_of(PROMPT, session=8, slot=1, seed=2))
    yield drafter("two sessions at once", (both, answers))
    taken = step_of(PROMPT, session=8, slot=0)
    clash = step_frame(first) + step_frame(taken)
    yield drafter("a slot in use", (clash, error_frame(NO_SLOT, taken, "slot") + answer_of(first)))
    third_session = step_of(PROMPT, session=9, slot=0)
    refusal = error_frame(LIMIT_EXCEEDED, third_session, "max_sessions")
    yield drafter(
        "one session too many", asked(first), asked(other), (step_frame(third_session), refusal)
    )
    full = step_of([1] * 23, depth=2)
    yield drafter("no room in the context", (step_frame(full), complete_frame(full, status=1)))
    brim = step_of([1] * 21)
    yield drafter("just enough room", asked(brim))
    broken = step_of([4, 0, 1])
    declined = (step_frame(broken), complete_frame(broken, status=4))
    yield drafter("a row that has no q", declined, logits=NAN_LOGITS)


def refusals_of_a_drafter() -> Iterator[Vector]:
    """STEPs that cannot be followed: one ERROR, and the session goes on as it was."""
    first = step_of(PROMPT)
    right = following(first)

    def refused(note: str, wrong: Fields, code: int) -> Vector:
        exchange = [asked(first), (step_frame(wrong), error_frame(code, wrong)), asked(right)]
        return drafter(note, *exchange)

    other = {**first, "temperature": 0.5}
    exchange = (step_frame(other), error_frame(DUPLICATE_ROUND, other))
    yield drafter("another STEP under one round", asked(first), exchange, asked(right))
    older = [asked(first), asked(right), (step_frame(first), error_frame(DUPLICATE_ROUND, first))]
    yield drafter("a round before the latest", *older)
    yield refused("another digest", {**right, "prefix_digest": bytes(16)}, WRONG_DIGEST)
    accepted, outcome = right["committed_accepted"], right["committed_outcome"]
    wrong = {**right, "committed_accepted": accepted + 1}
    yield refused("more accepted than the tokens say", wrong, COMMIT_MISMATCH)
    wrong = {**right, "committed_outcome": BONUS if outcome == CORRECTION else CORRECTION}
    yield refused("the other outcome", wrong, COMMIT_MISMATCH)
    ahead = {**right, "prefix": [*right["prefix"], 1, 1], "base": len(right["prefix"]) + 1}
    ahead |= {"anchor": right["anchor"] + 2, "first_position": right["first_position"] + 2}
    ahead |= {"prefix_digest": peers.digest(ahead["prefix"])}
    ahead |= {"committed_accepted": 0, "committed_outcome": ALONE}
    yield refused("a round that commits too many", ahead, COMMIT_MISMATCH)
    unknown = step_of([*PROMPT, 1], session=5, round_=2, base=3, rider=(1, 0, ALONE))
    refusal = (step_frame(unknown), error_frame(UNKNOWN_PREFIX, unknown))
    yield drafter("a session that is not open", refusal, asked(first))
    missing = step_of([*PROMPT, 1, 2], round_=3, base=4, rider=(2, 0, ALONE))
    yield drafter(
        "tokens that it lacks",
        asked(first),
        (step_frame(missing), error_frame(UNKNOWN_PREFIX, missing)),
    )


def ends_of_a_drafter() -> Iterator[Vector]:
    """What closes the connection: one ERROR."""
    greeting = (
        peers.hello_frame(VERIFIER_HELLO),
        peers.answer_frame(VERIFIER_HELLO, DRAFTER_HELLO),
    )
    own = DRAFTER_HELLO

    def ends(note: str, given: bytes, code: int, field: str = "", first: bool = False) -> Vector:
        last = (given, error_frame(code, field=field))
        return conversation(note, own, [last] if first else [greeting, last], closed=True)

    first = step_of(PROMPT)
    yield ends("a STEP before HELLO", step_frame(first), UNEXPECTED, first=True)
    yield ends("an HTTP request", b"GET / HTTP/1.1\r\n", BAD_MAGIC, first=True)
    for field, value in (("vocab_size", 7), ("rng_abi", "mt19937"), ("tokenizer_hash", bytes(32))):
        hello = peers.hello_frame({**VERIFIER_HELLO, field: value})
        yield ends(f"another {field}", hello, HELLO_REFUSED, field, first=True)
    yield ends("a second HELLO", peers.hello_frame(VERIFIER_HELLO), UNEXPECTED)
    broken = step_frame(first)[:-1] + b"\0"
    yield ends("a STEP that fails its checksum", broken, BAD_PAYLOAD)
    yield ends("a REPLY to a drafter", answer_of(first), UNEXPECTED)
    yield ends("a depth of zero", step_frame({**first, "depth": 0}), BAD_FIELD)
    yield ends("nonsense after a HELLO", b"\0\0\0\0", BAD_MAGIC)


def drafters() -> Iterator[Vector]:
    """All conversations with a drafter."""
    for part in (rounds_of_a_drafter, lives_of_a_drafter, refusals_of_a_drafter, ends_of_a_drafter):
        yield from part()
