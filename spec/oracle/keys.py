"""What a pre-shared key makes, rules P21 and P22 of spec/protocol.md, hash by hash.

HMAC is written out from RFC 2104 here, so that nothing but SHA-256 and BLAKE2b is taken on trust.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping

from spec.oracle.frames import Frame, read_frames

LABEL = b"draftwire-psk-v1"
VERIFIER_PROOF, DRAFTER_PROOF, VERIFIER_FRAMES, DRAFTER_FRAMES = 1, 2, 3, 4
MAC_BYTES = 16


def hmac_sha256(key: bytes, text: bytes) -> bytes:
    """RFC 2104 with SHA-256, whose block is 64 bytes."""
    if len(key) > 64:
        key = hashlib.sha256(key).digest()
    key = key.ljust(64, b"\0")
    inner = bytes(byte ^ 0x36 for byte in key)
    outer = bytes(byte ^ 0x5C for byte in key)
    return hashlib.sha256(outer + hashlib.sha256(inner + text).digest()).digest()


def made(key: bytes, purpose: int, version: int, verifiers: bytes, drafters: bytes) -> bytes:
    """P21: 32 bytes for one purpose, from the key and the nonces of both sides."""
    text = LABEL + bytes([purpose, version]) + verifiers + drafters + bytes([1])
    return hmac_sha256(key, text)


def frame_mac(key: bytes, number: int, frame: bytes) -> bytes:
    """P22: the MAC of frame ``number`` of one direction, from 0."""
    text = struct.pack("<Q", number) + frame
    return hashlib.blake2b(text, key=key, digest_size=MAC_BYTES).digest()


def read_sealed_frames(
    stream: bytes, version: int, bounds: Mapping[str, int], key: bytes
) -> Iterator[Frame]:
    """The frames of a stream that has ended, each with its MAC behind it, from number 0."""
    return read_frames(stream, version, bounds, lambda n, frame: frame_mac(key, n, frame))
