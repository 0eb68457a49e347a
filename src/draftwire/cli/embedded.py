"""Where the embedded model pair lies inside the installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import draftwire
from draftwire.errors import ModelError

Part = Literal["target", "drafter"]


def embedded(part: Part) -> Path:
    """Return the folder of the embedded target or drafter; ModelError when it was not shipped."""
    folder = Path(draftwire.__file__).parent / "models" / part
    if not (folder / "config.json").is_file():
        raise ModelError(f"this installation has no embedded {part}: name a model folder instead")
    return folder
