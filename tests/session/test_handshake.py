"""The key's handshake: its full product, its bytes, and every way to come in without the key."""

from __future__ import annotations

import itertools

import pytest

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.session import handshake as module
from draftwire.session.handshake import (
    HANDSHAKE,
    Handshake,
    HandshakeInput,
    HandshakeState,
    derive,
)
from draftwire.wire.messages import Challenge, Message, Ping, Proof
from draftwire.wire.registry import KeyPurpose, MessageType, Role, WireVersion
from spec.oracle import keys

V2 = WireVersion.V2
KEY = b"k" * 32
NONCES = {Role.VERIFIER: b"v" * 32, Role.DRAFTER: b"d" * 32}
STATE, INPUT = HandshakeState, HandshakeInput

PRODUCT = {
    (STATE.FRESH, INPUT.CHALLENGE): STATE.ASKED,
    (STATE.ASKED, INPUT.CHALLENGE): STATE.ANSWERED,
    (STATE.ANSWERED, INPUT.PROOF): STATE.CLAIMED,
    (STATE.CLAIMED, INPUT.PROOF): STATE.PROVED,
}
"""Written a second time: everything else fails the handshake."""


def sides(**changes: bytes) -> tuple[Handshake, Handshake]:
    return (
        Handshake(Role.VERIFIER, changes.get("verifiers_key", KEY), NONCES[Role.VERIFIER], V2),
        Handshake(Role.DRAFTER, changes.get("drafters_key", KEY), NONCES[Role.DRAFTER], V2),
    )


def refused(side: Handshake, message: Message) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        side.take(message)
    assert caught.value.code is ProtocolErrorCode.AUTHENTICATION_FAILED
    assert side.state is STATE.FAILED and not side.proved
    return caught.value


def proof(role: Role) -> Proof:
    purpose = KeyPurpose.VERIFIER_PROOF if role is Role.VERIFIER else KeyPurpose.DRAFTER_PROOF
    return Proof(derive(KEY, purpose, V2, *NONCES.values()))


# the table


@pytest.mark.parametrize(("state", "happened"), [*itertools.product(STATE, INPUT)])
def test_the_full_product(state: HandshakeState, happened: HandshakeInput) -> None:
    verifier, _ = sides()
    verifier.state = state
    following = PRODUCT.get((state, happened))
    assert HANDSHAKE.following(state, happened) is following
    if following is None:
        with pytest.raises(ProtocolError):
            verifier.advance(happened)
        assert verifier.state is STATE.FAILED
    else:
        verifier.advance(happened)
        assert verifier.state is following


REACHED = {
    Role.VERIFIER: (STATE.ASKED, STATE.CLAIMED, STATE.PROVED),
    Role.DRAFTER: (STATE.FRESH, STATE.ANSWERED, STATE.PROVED),
}
MESSAGES: dict[str, Message] = {
    "challenge": Challenge(b"n" * 32),
    "own nonce, verifier": Challenge(NONCES[Role.VERIFIER]),
    "own nonce, drafter": Challenge(NONCES[Role.DRAFTER]),
    "proof, verifier": proof(Role.VERIFIER),
    "proof, drafter": proof(Role.DRAFTER),
    "proof, wrong": Proof(bytes(32)),
    "ping": Ping(1),
}


def at(role: Role, state: HandshakeState) -> Handshake:
    """One side, brought to a state by its own messages."""
    verifier, drafter = sides()
    (asked,) = verifier.start()
    if state is STATE.FRESH:
        return drafter
    if state is STATE.ASKED:
        return verifier
    (answered,) = drafter.take(asked)
    if state is STATE.ANSWERED:
        return drafter
    (claimed,) = verifier.take(answered)
    if state is STATE.CLAIMED:
        return verifier
    (proved,) = drafter.take(claimed)
    assert verifier.take(proved) == []
    return verifier if role is Role.VERIFIER else drafter


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize(
    ("role", "state"), [(role, state) for role in Role for state in REACHED[role]]
)
def test_each_side_in_each_state_takes_one_message_and_no_other(
    role: Role, state: HandshakeState, name: str
) -> None:
    side, message = at(role, state), MESSAGES[name]
    assert side.state is state
    other = Role.DRAFTER if role is Role.VERIFIER else Role.VERIFIER
    right = {
        STATE.FRESH: name in ("challenge", "own nonce, verifier"),
        STATE.ASKED: name in ("challenge", "own nonce, drafter"),
        STATE.ANSWERED: message == proof(other),
        STATE.CLAIMED: message == proof(other),
        STATE.PROVED: False,
    }[state]
    if right:
        side.take(message)
        assert side.state is not STATE.FAILED
    else:
        refused(side, message)
        for again in MESSAGES.values():
            refused(side, again)


# the bytes


def test_all_four_purposes_are_the_oracles_and_differ() -> None:
    made = set()
    for version, purpose in itertools.product(WireVersion, KeyPurpose):
        ours = derive(KEY, purpose, version, *NONCES.values())
        assert ours == keys.made(KEY, purpose, version, *NONCES.values())
        made.add(ours)
        made.add(derive(KEY, purpose, version, *reversed(NONCES.values())))
    assert len(made) == 2 * len(WireVersion) * len(KeyPurpose)
    assert derive(b"k" * 65, KeyPurpose.DRAFTER_PROOF, V2, b"", b"") == keys.made(
        b"k" * 65, 2, 2, b"", b""
    )


def test_both_sides_prove_it_and_make_the_same_keys_for_frames() -> None:
    verifier, drafter = sides()
    assert drafter.start() == []
    (asked,) = verifier.start()
    assert asked == Challenge(NONCES[Role.VERIFIER])
    assert (verifier.due, drafter.due) == (MessageType.CHALLENGE, MessageType.CHALLENGE)
    (answered,) = drafter.take(asked)
    assert answered == Challenge(NONCES[Role.DRAFTER]) and drafter.due is MessageType.PROOF
    (claimed,) = verifier.take(answered)
    assert claimed == proof(Role.VERIFIER)
    (proved,) = drafter.take(claimed)
    assert proved == proof(Role.DRAFTER) and drafter.proved and not verifier.proved
    assert verifier.take(proved) == [] and verifier.proved
    frame = [bytes(16), bytes(4)]
    macs = [verifier.sealer().seal(frame)[-1], drafter.sealer().seal(frame)[-1]]
    assert macs[0] != macs[1]
    for opener, mac in zip((drafter.opener(), verifier.opener()), macs, strict=True):
        assert opener.opens(memoryview(bytes(20)), memoryview(mac))


# ways in


def test_another_key_is_refused_by_whoever_is_asked_first() -> None:
    verifier, drafter = sides(verifiers_key=b"K" * 32)
    (answered,) = drafter.take(*verifier.start())
    error = refused(drafter, *verifier.take(answered))
    assert error.field == "proof"


def test_every_changed_bit_of_every_message_fails_the_handshake() -> None:
    """One changed bit of a nonce or a proof on its way keeps both from being proved."""
    for index, bit in itertools.product(range(4), range(8 * 32)):
        verifier, drafter = sides()
        message = verifier.start()[0]
        receivers = itertools.cycle((drafter, verifier))
        failed = 0
        for step, side in zip(range(4), receivers, strict=False):
            if step == index:
                message = changed(message, bit)
            try:
                answers = side.take(message)
            except ProtocolError as error:
                assert error.code is ProtocolErrorCode.AUTHENTICATION_FAILED
                failed += 1
                break
            message = answers[0] if answers else message
        assert failed == 1
        assert not (verifier.proved and drafter.proved)
        assert not verifier.proved  # it is the last to be convinced
        assert drafter.proved is (index == 3)  # only its own last word was changed


def changed(message: Message, bit: int) -> Message:
    raw = bytearray(message.nonce if isinstance(message, Challenge) else message.proof)
    raw[bit // 8] ^= 1 << bit % 8
    return Challenge(bytes(raw)) if isinstance(message, Challenge) else Proof(bytes(raw))


def test_a_recorded_verifier_is_refused_by_a_drafter_with_a_fresh_nonce() -> None:
    verifier, drafter = sides()
    asked = verifier.start()[0]
    claimed = verifier.take(*drafter.take(asked))[0]
    again = Handshake(Role.DRAFTER, KEY, b"D" * 32, V2)
    again.take(asked)
    assert refused(again, claimed).field == "proof"


def test_a_recorded_drafter_is_refused_by_a_verifier_with_a_fresh_nonce() -> None:
    verifier, drafter = sides()
    answered = drafter.take(*verifier.start())[0]
    proved = drafter.take(*verifier.take(answered))[0]
    again = Handshake(Role.VERIFIER, KEY, b"V" * 32, V2)
    again.start()
    again.take(answered)
    assert refused(again, proved).field == "proof"


def test_what_a_side_said_sent_back_to_it_proves_nothing() -> None:
    verifier, _ = sides()
    assert refused(verifier, *verifier.start()).field == "nonce"
    verifier, _ = sides()
    verifier.start()
    (claimed,) = verifier.take(Challenge(b"n" * 32))
    assert refused(verifier, claimed).field == "proof"


def test_a_proof_for_one_version_is_none_for_another() -> None:
    verifier = Handshake(Role.VERIFIER, KEY, NONCES[Role.VERIFIER], WireVersion.V1)
    _, drafter = sides()
    claimed = verifier.take(*drafter.take(*verifier.start()))[0]
    refused(drafter, claimed)


def test_without_a_key_or_with_a_short_nonce_there_is_no_handshake() -> None:
    for key, nonce in ((b"", bytes(32)), (KEY, bytes(31)), (KEY, b"")):
        with pytest.raises(ValueError, match="needs a key"):
            Handshake(Role.VERIFIER, key, nonce, V2)
    assert module.NONCE_BYTES == 32
