"""A MAC for every frame of one direction of one connection (P22)."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from draftwire.session.proposal import Parts
from draftwire.wire.registry import FRAME_MAC_BYTES, HEADER_BYTES, TRAILER_BYTES

_LENGTH: Final = slice(HEADER_BYTES - 8, HEADER_BYTES - 4)  # of the payload, in a frame's header


class Sealer:
    """Makes or checks the MACs of one direction's frames, in order.

    The MAC of frame n, from 0, is BLAKE2b-128 (RFC 7693) keyed with 32 bytes that belong to this
    connection and direction, of n as u64 and then the frame: a frame that was changed, left out,
    sent twice, put elsewhere or sent back to its sender has another one.
    """

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=FRAME_MAC_BYTES)
        self._count = 0

    def seal(self, parts: Parts) -> Parts:
        """Return whole encoded frames with the MAC behind each; the parts themselves are kept.

        parts: bytes of one frame or several, a header in one piece.
        """
        sealed: Parts = []
        left = 0
        mac = self._keyed
        for part in parts:
            rest = part
            while len(rest):
                if not left:  # the 16 bytes of a header
                    length = int.from_bytes(rest[_LENGTH], "little")
                    left = HEADER_BYTES + length + TRAILER_BYTES
                    mac = self._next()
                piece, rest = (rest, b"") if len(rest) <= left else (rest[:left], rest[left:])
                mac.update(piece)
                sealed.append(piece)
                left -= len(piece)
                if not left:
                    sealed.append(mac.digest())
        return sealed

    def opens(self, frame: memoryview, mac: memoryview) -> bool:
        """Whether ``mac`` is that of the next frame; compared in constant time."""
        due = self._next()
        due.update(frame)
        return hmac.compare_digest(due.digest(), mac)

    def _next(self) -> hashlib.blake2b:
        mac = self._keyed.copy()
        mac.update(self._count.to_bytes(8, "little"))  # 2^64 frames outlast any connection
        self._count += 1
        return mac
