"""Lossless remote speculative decoding: draft on one machine, verify on another, same law.

The names below are loaded when they are first used (PEP 562): ``import draftwire`` itself imports
neither NumPy nor torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwire.errors import DraftwireError as DraftwireError

__version__ = "0.1.0"

_EXPORTS = {
    "DraftwireError": "draftwire.errors",
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
