"""Mutated conversations through both roles: the same in every split, and one error at most."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from spec.oracle import keys
from spec.oracle.frames import TYPE_NUMBERS, crc32c
from spec.oracle.messages import ERROR_CODES
from testing.fuzz.frames import Disagreement
from testing.fuzz.machines import (
    Action,
    Conversation,
    Run,
    Setup,
    conversations,
    run_drafter,
    run_verifier,
)
from testing.fuzz.mutations import mutated_bytes, mutated_turns, random_split
from testing.fuzz.pieces import Keyed, Piece, cut, written

ERROR, PROOF = TYPE_NUMBERS["ERROR"], TYPE_NUMBERS["PROOF"]


@dataclass(frozen=True)
class Material:
    """One direction of a conversation, as frames, and the machine that reads it."""

    reader: str
    setup: Setup
    script: tuple[Action, ...]
    turns: list[list[Piece]]
    keyed: Keyed | None


def materials(talks: Sequence[Conversation] | None = None) -> list[Material]:
    """Both directions of every conversation."""
    found = []
    for talk in talks or conversations():
        for reader, sender, data in (
            ("drafter", "verifier", talk.to_drafter),
            ("verifier", "drafter", talk.to_verifier),
        ):
            pieces = cut(b"".join(data), sealed_after_proof=talk.setup.keyed)
            turns = by_turns(pieces, data, talk.setup.keyed)
            keyed = talk.setup.keyed_as(sender)
            if written(turns, keyed) != data:
                raise AssertionError("a conversation is not what its frames are written as")
            found.append(Material(reader, talk.setup, talk.script, turns, keyed))
    return found


def by_turns(pieces: list[Piece], data: list[bytes], keyed: bool) -> list[list[Piece]]:
    """The frames of a conversation in the turns in which they came."""
    turns: list[list[Piece]] = []
    left = list(pieces)
    mac_bytes = 0
    for turn in data:
        turns.append([])
        size = 0
        while size < len(turn):
            piece = left.pop(0)
            turns[-1].append(piece)
            size += len(piece.written()) + mac_bytes
            if keyed and piece.type == PROOF:
                mac_bytes = keys.MAC_BYTES
    return turns


def run(material: Material, turns: Sequence[bytes], split: str, random: Random) -> Run:
    """Feed the machine that reads, in one way of splitting."""

    def pieces(data: bytes) -> Sequence[bytes]:
        if split == "whole":
            return [data] if data else []
        if split == "bytes":
            return [data[i : i + 1] for i in range(len(data))]
        return random_split(random, data)

    if material.reader == "drafter":
        return run_drafter(material.setup, turns, pieces)
    return run_verifier(material.setup, turns, pieces, material.script)


def check(material: Material, turns: Sequence[bytes], random: Random) -> str:
    """Feed the turns in three splits; returns the outcome in a word, or raises Disagreement."""
    whole = run(material, turns, "whole", random)
    for split in ("bytes", "random"):
        other = run(material, turns, split, random)
        if other != whole:
            raise Disagreement(f"{material.reader} {material.setup}, {split}: {other}\n{whole}")
    check_sent(material, whole, b"".join(turns)[16:48])
    if whole.error is None:
        return "closed" if whole.closed and material.reader == "drafter" else "followed"
    code, _, told = whole.error
    return f"told {code}" if told else code


def check_sent(material: Material, found: Run, peer_nonce: bytes) -> None:
    """What a machine sends is whole frames, and one ERROR if and only if it found one."""
    data = b"".join(found.sent)
    pieces = sent_frames(data, material.setup, material.reader, peer_nonce)
    errors = [
        (index, struct.unpack_from("<H", piece.payload, 16)[0])
        for index, piece in enumerate(pieces)
        if piece.type == ERROR and not int.from_bytes(piece.payload[:8], "little")
    ]
    due = found.error is not None and not found.error[2]
    if due != bool(errors) or len(errors) > 1:
        raise Disagreement(f"{material}: ended by {found.error}, and sent errors {errors}")
    if errors and (errors[0][0] != len(pieces) - 1 or errors[0][1] not in ERROR_CODES):
        raise Disagreement(f"{material}: {errors} of {len(pieces)} frames")
    if found.error is not None and not found.closed:
        raise Disagreement(f"{material}: {found.error}, and it stays open")


def sent_frames(data: bytes, setup: Setup, sender: str, peer_nonce: bytes) -> list[Piece]:
    """The frames that a machine has sent, every checksum and MAC checked by the oracle.

    peer_nonce: what the machine has read of the other side's CHALLENGE, if it came.
    """
    keyed = setup.keyed_as(sender)
    pieces = cut(data, sealed_after_proof=setup.keyed)
    at = number = 0
    key = b""
    for piece in pieces:
        end = at + 20 + len(piece.payload)
        frame = data[at:end]
        sums = struct.pack("<I", crc32c(frame[:12])), struct.pack("<I", crc32c(piece.payload))
        if (frame[12:16], frame[-4:]) != sums or len(frame) != end - at:
            raise Disagreement(f"a frame that was sent is broken: {frame.hex()}")
        at = end
        if key:
            at += keys.MAC_BYTES
            if data[end:at] != keys.frame_mac(key, number, frame):
                raise Disagreement(f"frame {number} under the key was sent with a wrong MAC")
            number += 1
        if keyed is not None and piece.type == PROOF:
            own = pieces[0].payload
            key = replace(keyed, peer_nonce=peer_nonce).frames_key(setup.version, own)
    if at != len(data):
        raise Disagreement(f"{len(data) - at} bytes that are no frame were sent")
    return pieces


def run_case(random: Random, places: Sequence[Material], foreign: Sequence[Piece]) -> str:
    """Make a case and check it."""
    material = random.choice(places)
    turns = written(mutated_turns(random, material.turns, foreign), material.keyed)
    if random.random() < 0.3 and turns:
        at = random.randrange(len(turns))
        turns[at] = mutated_bytes(random, turns[at])
    return check(material, turns, random)


def foreign_of(places: Sequence[Material]) -> list[Piece]:
    """Every frame of every conversation, to be put into another."""
    return [piece for material in places for turn in material.turns for piece in turn]
