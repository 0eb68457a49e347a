"""A stream as frames whose every part can be changed by itself, written with repair or without."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from draftwire.wire.checksum import crc32c
from spec.oracle import keys
from spec.oracle.frames import HEADER_BYTES, MAGIC, TRAILER_BYTES, TYPE_NUMBERS

CHALLENGE, PROOF = TYPE_NUMBERS["CHALLENGE"], TYPE_NUMBERS["PROOF"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One frame. Length and checksums are what they should be unless they are given."""

    version: int
    type: int
    payload: bytes
    flags: int = 0
    magic: bytes = MAGIC
    length: int | None = None
    header_sum: int | None = None
    payload_sum: int | None = None
    mac: bytes | None = None

    def written(self) -> bytes:
        """Header, payload and trailer."""
        length = len(self.payload) if self.length is None else self.length
        head = self.magic + struct.pack("<BBHI", self.version, self.type, self.flags, length)
        header_sum = crc32c(head) if self.header_sum is None else self.header_sum
        payload_sum = crc32c(self.payload) if self.payload_sum is None else self.payload_sum
        return b"".join(
            (head, struct.pack("<I", header_sum), self.payload, struct.pack("<I", payload_sum))
        )


@dataclass(frozen=True, slots=True)
class Keyed:
    """What one direction of a keyed connection is sealed with (P21, P22)."""

    secret: bytes
    purpose: int  # of the sender's frames
    peer_nonce: bytes

    def frames_key(self, version: int, nonce: bytes) -> bytes:
        """The key of this direction's MACs, where its sender's nonce is ``nonce``."""
        verifies = self.purpose == keys.VERIFIER_FRAMES
        nonces = (nonce, self.peer_nonce) if verifies else (self.peer_nonce, nonce)
        return keys.made(self.secret, self.purpose, version, *nonces)


def cut(stream: bytes, sealed_after_proof: bool = False) -> list[Piece]:
    """The frames of a well-formed stream; with a key, those behind PROOF have a MAC."""
    pieces, at, mac_bytes = [], 0, 0
    while at < len(stream):
        version, number, flags, length = struct.unpack_from("<BBHI", stream, at + 4)
        begin = at + HEADER_BYTES
        pieces.append(Piece(version, number, stream[begin : begin + length], flags))
        at = begin + length + TRAILER_BYTES + mac_bytes
        if sealed_after_proof and number == PROOF:
            mac_bytes = keys.MAC_BYTES
    return pieces


def written(turns: Sequence[Sequence[Piece]], keyed: Keyed | None = None) -> list[bytes]:
    """The bytes of each turn; every frame behind the first PROOF has the MAC that is due there."""
    nonce = b""
    key = b""
    number = 0
    result = []
    for turn in turns:
        data = bytearray()
        for piece in turn:
            frame = piece.written()
            data += frame
            if piece.mac is not None:
                data += piece.mac
            elif key:
                data += keys.frame_mac(key, number, frame)
            if key:
                number += 1
            if keyed is not None and piece.type == CHALLENGE and not nonce:
                nonce = piece.payload
            if keyed is not None and piece.type == PROOF and nonce and not key:
                key = keyed.frames_key(piece.version & 0xFF, nonce)
        result.append(bytes(data))
    return result


def with_payload(piece: Piece, payload: bytes | bytearray) -> Piece:
    """A piece with another payload and the length and checksum of that one."""
    return replace(piece, payload=bytes(payload))


def joined(pieces: Iterable[Piece]) -> bytes:
    """The bytes of frames without MACs."""
    return b"".join(piece.written() for piece in pieces)
