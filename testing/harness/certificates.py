"""The certificates beside this file, with keys that only their owner may read."""

from __future__ import annotations

import hashlib
import shutil
import ssl
from pathlib import Path

from draftwire.transport.tls import TlsFiles

FOLDER = Path(__file__).parent / "certificate_files"


def tls_files(folder: Path, name: str, trusted: str = "authority", *pins: str) -> TlsFiles:
    """One side's files, copied into ``folder``; pins: whose fingerprints alone are taken."""
    for each in FOLDER.glob("*.*"):
        shutil.copy(each, folder)
        (folder / each.name).chmod(0o600)
    return TlsFiles(
        folder / f"{name}.pem",
        folder / f"{name}.key",
        folder / f"{trusted}.pem",
        tuple(fingerprint(pin) for pin in pins),
    )


def fingerprint(name: str) -> bytes:
    pem = (FOLDER / f"{name}.pem").read_text(encoding="ascii")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest()
