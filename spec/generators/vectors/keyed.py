"""Vectors of connections with a key: both sides' handshakes and the MACs behind it (P20 to P22)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from spec.generators.vectors.drafters import PROMPT
from spec.generators.vectors.form import Vector, binary32
from spec.generators.vectors.frames import frame
from spec.generators.vectors.peers import (
    DRAFTER_HELLO,
    DRAFTER_HELLO_V1,
    LOGITS,
    VERIFIER_HELLO,
    VERIFIER_HELLO_V1,
    answer_frame,
    answer_of,
    error_frame,
    hello_frame,
    step_frame,
    step_of,
)
from spec.oracle import keys
from spec.oracle.frames import write_fields

Exchange = Sequence[tuple[bytes, bytes]]

KEY = bytes(range(100, 132))
LONG_KEY = bytes(range(96))  # longer than a block of SHA-256
VERIFIERS, DRAFTERS = bytes(range(32)), bytes(range(200, 232))  # nonces
REFUSED = 35
SIDES = {"verifier": (keys.VERIFIER_PROOF, keys.VERIFIER_FRAMES)}
SIDES["drafter"] = (keys.DRAFTER_PROOF, keys.DRAFTER_FRAMES)


def challenge(nonce: bytes, version: int = 2) -> bytes:
    """A CHALLENGE."""
    return frame("CHALLENGE", write_fields("CHALLENGE", {"nonce": nonce}), version)


def proof(side: str, version: int = 2, key: bytes = KEY) -> bytes:
    """The PROOF of a side."""
    made = keys.made(key, SIDES[side][0], version, VERIFIERS, DRAFTERS)
    return frame("PROOF", write_fields("PROOF", {"proof": made}), version)


def sealed(side: str, number: int, *frames: bytes, version: int = 2, key: bytes = KEY) -> bytes:
    """Frames of a side with their MACs, the first of them being frame ``number`` of it."""
    made = keys.made(key, SIDES[side][1], version, VERIFIERS, DRAFTERS)
    return b"".join(
        data + keys.frame_mac(made, number + index, data) for index, data in enumerate(frames)
    )


def uses() -> Iterator[Vector]:
    """P21: what a key makes for every purpose; P22: the MACs of the first frames of a direction."""
    ping = frame("PING", write_fields("PING", {"nonce": 1}))
    for key in (KEY, LONG_KEY):
        for version in (1, 2):
            made = [
                keys.made(key, purpose, version, VERIFIERS, DRAFTERS) for purpose in range(1, 5)
            ]
            yield {
                "op": "key_use",
                "note": f"a key of {len(key)} bytes, v{version}",
                "version": version,
                "key": key.hex(),
                "verifier_nonce": VERIFIERS.hex(),
                "drafter_nonce": DRAFTERS.hex(),
                "made": [each.hex() for each in made],
                "frame": ping.hex(),
                "macs": [keys.frame_mac(made[2], number, ping).hex() for number in range(3)],
            }


def conversation(
    note: str, side: str, exchange: Exchange, *, closed: bool, version: int = 2, key: bytes = KEY
) -> Vector:
    """What goes in and what must come out of one side; a verifier's first turn has nothing in."""
    hellos = {
        ("verifier", 2): VERIFIER_HELLO,
        ("verifier", 1): VERIFIER_HELLO_V1,
        ("drafter", 2): DRAFTER_HELLO,
        ("drafter", 1): DRAFTER_HELLO_V1,
    }
    vector: dict[str, Any] = {
        "op": f"keyed_{side}",
        "note": note,
        "hello": write_fields("HELLO", hellos[side, version]).hex(),
        "key": key.hex(),
        "nonce": (VERIFIERS if side == "verifier" else DRAFTERS).hex(),
    }
    if side == "drafter":
        vector["logits"] = {context: binary32(row) for context, row in LOGITS.items()}
    turns = [{"in": given.hex(), "out": due.hex()} for given, due in exchange]
    return {**vector, "exchange": turns, "closed": closed}


def opening(side: str, version: int = 2, key: bytes = KEY) -> list[tuple[bytes, bytes]]:
    """The handshake as a side sees it, HELLO included."""
    verifier = VERIFIER_HELLO if version == 2 else VERIFIER_HELLO_V1
    drafter = DRAFTER_HELLO if version == 2 else DRAFTER_HELLO_V1
    greeting = sealed("verifier", 0, hello_frame(verifier), version=version, key=key)
    answer = sealed("drafter", 0, answer_frame(verifier, drafter), version=version, key=key)
    theirs, ours = challenge(VERIFIERS, version), challenge(DRAFTERS, version)
    proved, proves = proof("verifier", version, key), proof("drafter", version, key)
    if side == "drafter":
        return [(theirs, ours), (proved, proves), (greeting, answer)]
    return [(b"", theirs), (ours, proved), (proves, greeting), (answer, b"")]


def good() -> Iterator[Vector]:
    """Handshakes that go well, and a round behind one."""
    for key in (KEY, LONG_KEY):
        for version in (1, 2):
            for side in SIDES:
                turns = opening(side, version, key)
                note = f"{side}, v{version}, a key of {len(key)} bytes"
                yield conversation(note, side, turns, closed=False, version=version, key=key)
    step = step_of(PROMPT)
    asked = sealed("verifier", 1, step_frame(step))
    answer = answer_of(step)
    reply = 20 + int.from_bytes(answer[8:12], "little")
    answered = sealed("drafter", 1, answer[:reply], answer[reply:])
    yield conversation(
        "a round under a key", "drafter", [*opening("drafter"), (asked, answered)], closed=False
    )


def refused_by_a_drafter() -> Iterator[Vector]:
    """P20 to P22: every way in that is none, and one ERROR."""
    greeting = hello_frame(VERIFIER_HELLO)
    start = opening("drafter")

    def ends(note: str, given: bytes, behind: int, field: str) -> Vector:
        error = error_frame(REFUSED, field=field)
        if behind >= 2:
            error = sealed("drafter", behind - 2, error)
        return conversation(note, "drafter", [*start[:behind], (given, error)], closed=True)

    yield ends("HELLO where CHALLENGE is due", greeting, 0, "nonce")
    yield ends("PROOF where CHALLENGE is due", proof("verifier"), 0, "nonce")
    yield ends("CHALLENGE where PROOF is due", challenge(VERIFIERS), 1, "proof")
    yield ends("HELLO where PROOF is due", greeting, 1, "proof")
    yield ends("the drafter's own nonce comes back", challenge(DRAFTERS), 0, "nonce")
    yield ends("the proof of another key", proof("verifier", key=bytes(range(1, 33))), 1, "proof")
    yield ends("the proof of the other role", proof("drafter"), 1, "proof")
    yield ends("the proof of the other version", in_v2(proof("verifier", 1)), 1, "proof")
    yield ends("HELLO without a MAC", greeting + bytes(16), 2, "")
    yield ends("HELLO under the other side's key", sealed("drafter", 0, greeting), 2, "")
    yield ends("HELLO under the number of a later frame", sealed("verifier", 1, greeting), 2, "")
    ping = frame("PING", write_fields("PING", {"nonce": 1}))
    yield ends("a frame once more", sealed("verifier", 0, greeting), 3, "")
    broken = bytearray(sealed("verifier", 1, ping))
    broken[16] ^= 1
    yield ends("a frame whose payload was changed: the MAC comes first", bytes(broken), 3, "")
    yield ends("CHALLENGE after the handshake", sealed("verifier", 1, challenge(VERIFIERS)), 3, "")


def refused_by_a_verifier() -> Iterator[Vector]:
    """The same on the other side."""
    start = opening("verifier")
    hello = answer_frame(VERIFIER_HELLO, DRAFTER_HELLO)

    def ends(note: str, given: bytes, behind: int, field: str) -> Vector:
        error = error_frame(REFUSED, field=field)
        if behind >= 2:  # its own PROOF is behind it
            error = sealed("verifier", behind - 2, error)
        return conversation(note, "verifier", [*start[:behind], (given, error)], closed=True)

    yield ends("HELLO of a drafter without a key", hello, 1, "nonce")
    yield ends("the verifier's own nonce comes back", challenge(VERIFIERS), 1, "nonce")
    yield ends("the proof of another key", proof("drafter", key=bytes(range(1, 33))), 2, "proof")
    yield ends("its own proof comes back", proof("verifier"), 2, "proof")
    yield ends("HELLO without a MAC", hello + bytes(16), 3, "")
    yield ends("its own HELLO comes back", start[2][1], 3, "")


def in_v2(data: bytes) -> bytes:
    """A frame of v1 as one of v2."""
    return frame("PROOF", data[16:-4])


def vectors() -> Iterator[Vector]:
    """All of them."""
    yield from uses()
    yield from good()
    yield from refused_by_a_drafter()
    yield from refused_by_a_verifier()
