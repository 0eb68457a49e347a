"""Two sides prove to one another that they hold the same key (P20, P21); no socket, no randomness.

::

    verifier                      drafter
    CHALLENGE nonce  -------->
                     <--------    CHALLENGE nonce
    PROOF            -------->
                     <--------    PROOF

Each proof is HMAC-SHA256 under the key of both nonces and the prover's role, so a proof of another
connection, of the other role or of another key is none. Source of the construction: RFC 5869,
Expand, one block; a proof as in the two-nonce entity authentication of ISO/IEC 9798-4.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from typing import Final, NoReturn

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.session.frame_mac import Sealer
from draftwire.session.state_table import StateTable
from draftwire.wire.messages import Challenge, Message, Proof
from draftwire.wire.registry import (
    KEY_LABEL,
    NONCE_BYTES,
    KeyPurpose,
    MessageType,
    Role,
    WireVersion,
)


class HandshakeState(StrEnum):
    """Where a handshake stands; the value is its meaning."""

    FRESH = "nothing is said yet"
    ASKED = "the verifier has sent its CHALLENGE"
    ANSWERED = "the drafter has sent its own"
    CLAIMED = "the verifier has sent its PROOF"
    PROVED = "the drafter has sent its own: both hold the key"
    FAILED = "it is over, and nothing is proved"


class HandshakeInput(StrEnum):
    """What can happen in a handshake, by either side; the value is its meaning."""

    CHALLENGE = "a CHALLENGE with a fresh nonce"
    PROOF = "the right PROOF"
    BAD_CHALLENGE = "a CHALLENGE with the other side's own nonce"
    BAD_PROOF = "another PROOF"


HANDSHAKE: Final = StateTable(
    HandshakeState,
    HandshakeInput,
    {
        HandshakeState.FRESH: {HandshakeInput.CHALLENGE: HandshakeState.ASKED},
        HandshakeState.ASKED: {HandshakeInput.CHALLENGE: HandshakeState.ANSWERED},
        HandshakeState.ANSWERED: {HandshakeInput.PROOF: HandshakeState.CLAIMED},
        HandshakeState.CLAIMED: {HandshakeInput.PROOF: HandshakeState.PROVED},
        HandshakeState.PROVED: {},
        HandshakeState.FAILED: {},
    },
)
"""The same for both roles; a missing entry is AUTHENTICATION_FAILED, and FAILED from then on."""

_PROOF_OF: Final = {
    Role.VERIFIER: KeyPurpose.VERIFIER_PROOF,
    Role.DRAFTER: KeyPurpose.DRAFTER_PROOF,
}
_FRAMES_OF: Final = {
    Role.VERIFIER: KeyPurpose.VERIFIER_FRAMES,
    Role.DRAFTER: KeyPurpose.DRAFTER_FRAMES,
}
_WRONG: Final = {
    HandshakeInput.BAD_CHALLENGE: ("nonce", "the peer sent this side's own nonce back"),
    HandshakeInput.BAD_PROOF: ("proof", "the peer has another key"),
}


def derive(
    key: bytes, purpose: KeyPurpose, version: WireVersion, verifiers: bytes, drafters: bytes
) -> bytes:
    """Return the 32 bytes that a key and the nonces of both sides make for one purpose (P21).

    Everything after the label has a fixed size, so no two arguments make the same input. The key is
    uniformly random, so RFC 5869, 3.3 lets the extraction be left out.
    """
    public = KEY_LABEL + bytes([purpose, version]) + verifiers + drafters + b"\x01"
    return hmac.new(key, public, hashlib.sha256).digest()


class Handshake:
    """One side of one connection's handshake.

    key: the secret that both sides share, bytes enough not to be guessed. nonce: 32 random
    bytes that this side never used before; a nonce used twice lets an old connection be replayed.
    """

    def __init__(self, role: Role, key: bytes, nonce: bytes, version: WireVersion) -> None:
        if not key or len(nonce) != NONCE_BYTES:
            raise ValueError(f"a handshake needs a key, and {NONCE_BYTES} random bytes")
        self.state = HandshakeState.FRESH
        self._role = role
        self._peer = Role.DRAFTER if role is Role.VERIFIER else Role.VERIFIER
        self._key = key
        self._version = version
        self._nonces = {role: nonce}

    @property
    def proved(self) -> bool:
        """Whether both sides have proved that they hold the key."""
        return self.state is HandshakeState.PROVED

    @property
    def due(self) -> MessageType:
        """The message that the peer has to send next."""
        return MessageType.PROOF if self._peer in self._nonces else MessageType.CHALLENGE

    def start(self) -> list[Message]:
        """Return what this side says first: the verifier's CHALLENGE, of a drafter nothing."""
        if self._role is Role.DRAFTER:
            return []
        self.advance(HandshakeInput.CHALLENGE)
        return [Challenge(self._nonces[self._role])]

    def take(self, message: Message) -> list[Message]:
        """Follow the peer's message and return the answer.

        Raises ProtocolError AUTHENTICATION_FAILED for anything but the one right message; the
        handshake has failed then.
        """
        if isinstance(message, Challenge):
            return self._challenged(message)
        if isinstance(message, Proof):
            return self._claimed(message)
        return self._fail("", f"{type(message).__name__} is no part of the handshake")

    def sealer(self) -> Sealer:
        """Return what seals this side's frames; not before both nonces are there."""
        return Sealer(self._make(_FRAMES_OF[self._role]))

    def opener(self) -> Sealer:
        """Return what the peer's frames are checked with; not before both nonces are there."""
        return Sealer(self._make(_FRAMES_OF[self._peer]))

    def _challenged(self, message: Challenge) -> list[Message]:
        own = hmac.compare_digest(message.nonce, self._nonces[self._role])
        self.advance(HandshakeInput.BAD_CHALLENGE if own else HandshakeInput.CHALLENGE)
        self._nonces[self._peer] = message.nonce
        if self._role is Role.DRAFTER:
            self.advance(HandshakeInput.CHALLENGE)
            return [Challenge(self._nonces[self._role])]
        return [self._prove()]

    def _claimed(self, message: Proof) -> list[Message]:
        if self._peer not in self._nonces:
            self._fail("nonce", "PROOF came before CHALLENGE")
        right = hmac.compare_digest(message.proof, self._make(_PROOF_OF[self._peer]))
        self.advance(HandshakeInput.PROOF if right else HandshakeInput.BAD_PROOF)
        return [self._prove()] if self._role is Role.DRAFTER else []

    def _prove(self) -> Message:
        self.advance(HandshakeInput.PROOF)
        return Proof(self._make(_PROOF_OF[self._role]))

    def _make(self, purpose: KeyPurpose) -> bytes:
        nonces = self._nonces[Role.VERIFIER], self._nonces[Role.DRAFTER]
        return derive(self._key, purpose, self._version, *nonces)

    def advance(self, happened: HandshakeInput) -> None:
        """Take an input of the table; ProtocolError for one that has no place there."""
        following = HANDSHAKE.following(self.state, happened)
        if following is None:
            field, why = _WRONG.get(
                happened, ("", f"{happened.value} may not come now ({self.state.value})")
            )
            self._fail(field, why)
        else:
            self.state = following

    def _fail(self, field: str, why: str) -> NoReturn:
        self.state = HandshakeState.FAILED
        raise ProtocolError(ProtocolErrorCode.AUTHENTICATION_FAILED, why, field=field or None)
