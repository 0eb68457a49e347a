"""What a failed handshake means to the user, and what to change on which side."""

from __future__ import annotations

from draftwire.errors import ProtocolError, ProtocolErrorCode, RemoteError
from draftwire.transport.tcp import Address
from draftwire.wire.frames import SPEAKS_TLS


def security_advice(error: ProtocolError, address: Address) -> str | None:
    """Say which side lacks which key or certificate; None when that is not what is wrong.

    Options are named as the commands spell them.
    """
    if str(error) == SPEAKS_TLS:
        return f"the drafter at {address} speaks TLS: add --tls-cert, --tls-key and --tls-ca"
    if error.code is not ProtocolErrorCode.AUTHENTICATION_FAILED:
        return None
    if error.field == "certificate":
        return f"the drafter at {address} does not know this side: {error}"
    if not isinstance(error, RemoteError):  # found here: certificates, or a drafter without the key
        return f"the drafter at {address} is not the one it should be: {error}"
    if error.field == "nonce":
        return f"the drafter at {address} asks for a key: add --psk-file FILE, the same as there"
    if error.field == "proof":
        return f"the drafter at {address} has another key: give both sides the same --psk-file"
    return (
        f"the drafter at {address} was started without a key: start it with the same --psk-file, or"
        " drop it here"
    )
