"""Lossless remote speculative decoding: draft on one machine, verify on another, same law.

The names below are loaded when they are first used (PEP 562): ``import draftwire`` itself imports
neither NumPy nor torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwire.drafter.limits import PeerLimits as PeerLimits
    from draftwire.drafter.program import DrafterConfig as DrafterConfig
    from draftwire.drafter.server import serve as serve
    from draftwire.engines.hf import HfDraftEngine as HfDraftEngine
    from draftwire.engines.hf import HfTargetEngine as HfTargetEngine
    from draftwire.engines.hf import RemoteDrafter as RemoteDrafter
    from draftwire.engines.hf import embedded_folder as embedded_folder
    from draftwire.engines.hf import load_folder as load_folder
    from draftwire.engines.hf import remote_speculative as remote_speculative
    from draftwire.errors import DraftwireError as DraftwireError
    from draftwire.session.slot_buffers import SlotPlan as SlotPlan
    from draftwire.telemetry.collector import register_metrics as register_metrics
    from draftwire.transport.keys import PresharedKey as PresharedKey
    from draftwire.transport.tls import TlsFiles as TlsFiles
    from draftwire.verifier.breaker import Breaker as Breaker
    from draftwire.verifier.generate import generate as generate
    from draftwire.verifier.report import Report as Report
    from draftwire.verifier.sampling import Sampling as Sampling
    from draftwire.wire.messages import ProposalPolicy as ProposalPolicy
    from draftwire.wire.registry import Layout as Layout

__version__ = "0.1.0"

_EXPORTS = {
    "Breaker": "draftwire.verifier.breaker",
    "DrafterConfig": "draftwire.drafter.program",
    "DraftwireError": "draftwire.errors",
    "HfDraftEngine": "draftwire.engines.hf",
    "HfTargetEngine": "draftwire.engines.hf",
    "Layout": "draftwire.wire.registry",
    "PeerLimits": "draftwire.drafter.limits",
    "PresharedKey": "draftwire.transport.keys",
    "ProposalPolicy": "draftwire.wire.messages",
    "RemoteDrafter": "draftwire.engines.hf",
    "Report": "draftwire.verifier.report",
    "Sampling": "draftwire.verifier.sampling",
    "SlotPlan": "draftwire.session.slot_buffers",
    "TlsFiles": "draftwire.transport.tls",
    "embedded_folder": "draftwire.engines.hf",
    "generate": "draftwire.verifier.generate",
    "load_folder": "draftwire.engines.hf",
    "register_metrics": "draftwire.telemetry.collector",
    "remote_speculative": "draftwire.engines.hf",
    "serve": "draftwire.drafter.server",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it, once."""
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *_EXPORTS})
