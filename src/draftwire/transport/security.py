"""How two machines know one another: a key that both hold, or certificates both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from draftwire.transport.keys import PresharedKey
from draftwire.transport.tls import TlsFiles

Security: TypeAlias = PresharedKey | TlsFiles
"""A key proves who speaks and that nothing was changed, and hides nothing; TLS does all three."""

SECURITY: Final = ("psk_file", "tls_cert", "tls_key", "tls_ca", "tls_fingerprint")
"""What options are called wherever security is configured; paths, and SHA-256 digests."""

_TLS_FILES: Final = ("tls_cert", "tls_key", "tls_ca")


def contradiction(given: Mapping[str, Any], spelled: Callable[[str], str]) -> str | None:
    """Return what cannot hold among the options, and what to write instead; None if all can.

    given: options by the names of SECURITY; None and empty values say nothing. spelled: how the
    user writes an option.
    """
    files = [name for name in _TLS_FILES if given.get(name) is not None]
    tls = files or given.get("tls_fingerprint")
    if given.get("psk_file") is not None and tls:
        return (
            f"{spelled('psk_file')} and {spelled('tls_...')} both say who may connect, and TLS"
            " alone says it and hides the text: keep one of them"
        )
    if tls and len(files) < len(_TLS_FILES):
        all_three = f"{spelled('tls_cert')}, {spelled('tls_key')} and {spelled('tls_ca')}"
        missing = " and ".join(spelled(name) for name in _TLS_FILES if name not in files)
        return f"mutual TLS needs {all_three} on both sides: add {missing}"
    return None


def security_of(given: Mapping[str, Any]) -> Security | None:
    """Return what options without a contradiction say; None if they say nothing.

    A key is read now; ConfigurationError names its file. Certificates are read by ``Tls``.
    """
    if given.get("psk_file") is not None:
        return PresharedKey.read(given["psk_file"])
    if given.get("tls_cert") is None:
        return None
    cert, key, trusted = (given[name] for name in _TLS_FILES)
    return TlsFiles(cert, key, trusted, tuple(given.get("tls_fingerprint") or ()))
