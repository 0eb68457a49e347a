"""From a folder to a block drafter that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwire.drafter.engine import DraftEngine
from draftwire.engines.dspark.engine import BlockDraftEngine
from draftwire.engines.hf.loader import load_tokenizer
from draftwire.engines.registry import ServedVocabulary
from draftwire.errors import ConfigurationError


def load_drafter(
    folder: Path | None,
    *,
    device: str,
    serve_as: ServedVocabulary | None = None,
    target: Path | None = None,
) -> DraftEngine[Any]:
    """Load a block drafter; target: the folder of its target, for what the checkpoint leaves there.

    Raises ModelError, and ConfigurationError for a vocabulary that cannot be served.
    """
    if folder is None:
        raise ConfigurationError("a block drafter is loaded from a folder")
    if serve_as is not None:
        raise ConfigurationError(
            "a drafter that reads its target's states serves its target's vocabulary alone: leave"
            " out --vocabulary shared and --vocab-size"
        )
    beside = folder if (folder / "tokenizer_config.json").is_file() else target
    if beside is None:
        raise ConfigurationError(
            f"{folder} holds no tokenizer: name its target's folder (serve --target-weights FOLDER)"
        )
    return BlockDraftEngine.from_folder(
        folder, load_tokenizer(beside), target=target, device=device
    )
