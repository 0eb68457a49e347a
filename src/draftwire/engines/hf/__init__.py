"""transformers models as target and as drafter, and the hook for ``model.generate``."""

from pathlib import Path
from typing import Any

from draftwire.drafter.engine import DraftEngine
from draftwire.engines.hf.draft import HfDraftEngine
from draftwire.engines.hf.hook import RemoteDrafter, remote_speculative
from draftwire.engines.hf.identity import real_vocabulary
from draftwire.engines.hf.loader import (
    LoadedModel,
    configured_width,
    embedded_folder,
    load_folder,
    load_tokenizer,
)
from draftwire.engines.hf.shared_vocabulary import SharedVocabularyEngine
from draftwire.engines.hf.target import HfTargetEngine
from draftwire.engines.hf.vocabulary import Vocabulary, compare
from draftwire.engines.identity import require_pair
from draftwire.engines.registry import LoadedTarget, ServedVocabulary
from draftwire.errors import ConfigurationError

__all__ = [
    "HfDraftEngine",
    "HfTargetEngine",
    "LoadedModel",
    "RemoteDrafter",
    "SharedVocabularyEngine",
    "embedded_folder",
    "load_drafter",
    "load_folder",
    "load_target",
    "remote_speculative",
    "require_pair",
]


def load_target(folder: Path | None, *, device: str) -> LoadedTarget:
    """Load a model folder as target; None = the embedded one. Raises ModelError."""
    loaded = load_folder(folder or embedded_folder("target"), device=device)
    engine = HfTargetEngine.from_loaded(loaded)
    return LoadedTarget(engine, loaded.tokenizer, loaded.folder, str(engine.self_test))


def load_drafter(
    folder: Path | None,
    *,
    device: str,
    serve_as: ServedVocabulary | None = None,
    target: Path | None = None,
) -> DraftEngine[Any]:
    """Load a model folder as drafter; None = the embedded one. target: not read.

    Raises ModelError, and ConfigurationError for a vocabulary that cannot be served.
    """
    loaded = load_folder(folder or embedded_folder("drafter"), device=device)
    engine = HfDraftEngine.from_loaded(loaded)
    if serve_as is None:
        return engine
    if serve_as.tokenizer is not None:
        return SharedVocabularyEngine.between(
            engine, loaded.tokenizer, serve_as.tokenizer, serve_as.size
        )
    if serve_as.size in (None, engine.vocab_size):
        return engine
    known = real_vocabulary(loaded.tokenizer, 1 << 62)
    if serve_as.size > known:
        raise ConfigurationError(
            f"the drafter's tokenizer knows {known} ids, so it cannot serve {serve_as.size}"
        )
    return SharedVocabularyEngine.resized(engine, serve_as.size)


def read_tokenizer(folder: Path | None, *, role: str) -> tuple[Any, int]:
    """Load the tokenizer of a folder, which needs no weights, and the V it stands for.

    None = the embedded model's of that role. V is what the tokenizer knows, at most what a
    config.json beside it says. Raises ModelError.
    """
    path = folder or embedded_folder(role)
    tokenizer = load_tokenizer(path)
    return tokenizer, real_vocabulary(tokenizer, configured_width(path))


def compare_tokenizers(target: tuple[Any, int], drafter: tuple[Any, int]) -> str:
    """Return in words what two tokenizers, each with its V, share, and where they differ first."""
    return str(compare(Vocabulary.of(*target), Vocabulary.of(*drafter)))
