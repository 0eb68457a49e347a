"""How two machines know one another: a key that both hold, or certificates both ways."""

from __future__ import annotations

from typing import TypeAlias

from draftwire.transport.keys import PresharedKey
from draftwire.transport.tls import TlsFiles

Security: TypeAlias = PresharedKey | TlsFiles
"""A key proves who speaks and that nothing was changed, and hides nothing; TLS does all three."""
