"""Checks of connections with a key: what it makes, and both sides' handshakes (P20 to P22)."""

from __future__ import annotations

from collections.abc import Callable

from draftwire.conformance.transcripts import converse, drafter_of, joined
from draftwire.conformance.vectors import Mismatch, Vector, expect
from draftwire.conformance.wire import hello_of
from draftwire.session.frame_mac import Sealer
from draftwire.session.handshake import derive
from draftwire.session.link import Link
from draftwire.wire.registry import KeyPurpose, Layout, WireVersion


def check_key_use(vector: Vector) -> None:
    """What a key makes for every purpose, and the MACs of a direction's first frames."""
    key, version = bytes.fromhex(vector["key"]), WireVersion(vector["version"])
    nonces = bytes.fromhex(vector["verifier_nonce"]), bytes.fromhex(vector["drafter_nonce"])
    made = [derive(key, purpose, version, *nonces) for purpose in KeyPurpose]
    expect("made", [each.hex() for each in made], vector["made"])
    frame = bytes.fromhex(vector["frame"])
    sealer, opener = Sealer(made[2]), Sealer(made[2])
    for number, mac in enumerate(vector["macs"]):
        expect(f"MAC of frame {number}", joined(sealer.seal([frame])), frame + bytes.fromhex(mac))
        opens = opener.opens(memoryview(frame), memoryview(bytes.fromhex(mac)))
        expect(f"frame {number} is let in", opens, True)


def check_drafter(vector: Vector) -> None:
    """Bytes in, bytes out of a drafter with a key; the same when they come one by one."""
    for size in (0, 1):
        program = drafter_of(vector, bytes.fromhex(vector["key"]), bytes.fromhex(vector["nonce"]))
        connection = program.connect()
        if connection is None:
            raise Mismatch("the drafter takes no connection")
        _exchange(vector, size, lambda data: converse(program, connection, data))  # noqa: B023
        expect("closed", connection.closing, vector["closed"])


def check_verifier(vector: Vector) -> None:
    """Bytes in, bytes out of a verifier with a key; the same when they come one by one."""
    layouts = int.from_bytes(bytes.fromhex(vector["hello"])[2:4], "little")
    hello = hello_of(vector["hello"], 1 if layouts == 1 << Layout.IDS_ONLY else 2)
    for size in (0, 1):
        link = Link(hello, 0.0, bytes.fromhex(vector["key"]), bytes.fromhex(vector["nonce"]))
        link.start()

        def told(data: bytes, link: Link = link) -> bytes:
            for _ in link.feed(data, 0.0):
                pass
            return joined(link.outgoing())

        _exchange(vector, size, told)
        expect("closed", link.closed, vector["closed"])


def _exchange(vector: Vector, size: int, told: Callable[[bytes], bytes]) -> None:
    """Compare every turn; size: bytes that come at once, 0 = all."""
    for number, turn in enumerate(vector["exchange"], start=1):
        data = bytes.fromhex(turn["in"])
        step = size or len(data) or 1
        pieces = [data[at : at + step] for at in range(0, len(data), step)] or [b""]
        found = b"".join(told(piece) for piece in pieces)
        expect(f"answer {number}", found.hex(), turn["out"])
