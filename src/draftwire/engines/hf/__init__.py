"""transformers models as target and as drafter, and the hook for ``model.generate``."""

from draftwire.engines.hf.draft import HfDraftEngine
from draftwire.engines.hf.hook import RemoteDrafter, remote_speculative
from draftwire.engines.hf.identity import require_pair
from draftwire.engines.hf.loader import LoadedModel, embedded_folder, load_folder
from draftwire.engines.hf.target import HfTargetEngine

__all__ = [
    "HfDraftEngine",
    "HfTargetEngine",
    "LoadedModel",
    "RemoteDrafter",
    "embedded_folder",
    "load_folder",
    "remote_speculative",
    "require_pair",
]
