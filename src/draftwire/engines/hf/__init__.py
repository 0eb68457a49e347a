"""transformers models as target and as drafter, and the hook for ``model.generate``."""

from pathlib import Path

from draftwire.engines.hf.draft import HfDraftEngine
from draftwire.engines.hf.hook import RemoteDrafter, remote_speculative
from draftwire.engines.hf.loader import LoadedModel, embedded_folder, load_folder
from draftwire.engines.hf.target import HfTargetEngine
from draftwire.engines.identity import require_pair
from draftwire.engines.registry import LoadedTarget

__all__ = [
    "HfDraftEngine",
    "HfTargetEngine",
    "LoadedModel",
    "RemoteDrafter",
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


def load_drafter(folder: Path | None, *, device: str) -> HfDraftEngine:
    """Load a model folder as drafter; None = the embedded one. Raises ModelError."""
    return HfDraftEngine.from_folder(folder or embedded_folder("drafter"), device=device)
