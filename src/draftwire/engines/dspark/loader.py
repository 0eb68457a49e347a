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
    beside = folder if (folder / "tokenizer_config.json").is_file() else target
    if beside is None:
        raise ConfigurationError(
            f"{folder} holds no tokenizer: name its target's folder (serve --target-weights FOLDER)"
        )
    tokenizer = load_tokenizer(beside)
    engine = BlockDraftEngine.from_folder(folder, tokenizer, target=target, device=device)
    if serve_as is not None and (serve_as.tokenizer, serve_as.size or engine.vocab_size) != (
        None,
        engine.vocab_size,
    ):
        raise ConfigurationError(
            "a drafter that reads its target's states serves its target's vocabulary alone: leave"
            " out --vocabulary shared and --vocab-size"
        )
    return engine
