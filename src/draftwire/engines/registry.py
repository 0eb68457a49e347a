"""The engines by name; a new one is its two files, a target and a drafter, and one line here.

Nothing of an engine is imported before one of its models is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from draftwire.engines.dspark.formats import is_block_drafter
from draftwire.errors import ConfigurationError

if TYPE_CHECKING:
    from draftwire.drafter.engine import DraftEngine
    from draftwire.verifier.engine import TargetEngine

DEFAULT_ENGINE: Final = "hf"


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target with what its text is made of.

    tokenizer: the engine's own. self_test: the figures of its self-test, in words.
    """

    engine: TargetEngine[Any]
    tokenizer: Any
    folder: Path
    self_test: str = ""


@dataclass(frozen=True, slots=True)
class ServedVocabulary:
    """The vocabulary that a drafter is to serve where it is not its own.

    tokenizer: the target's, on whose ids of equal text it drafts; None = its own. size: V of the
    target; None = all that the tokenizer knows.
    """

    tokenizer: Any = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """Where an engine is. target, drafter: "module:function", each of a folder and a device.

    The functions take a ``Path``, or None for the embedded model, and ``device``, a name as the
    engine's library has it; they return a LoadedTarget and a DraftEngine, and raise ModelError. The
    drafter's takes ``serve_as`` as well, a ServedVocabulary or None, and ``target``, the folder of
    its target. tokenizer: of a folder and a role, returns a tokenizer and its V. compare: of two of
    those, returns what they share in words. extra: what ``pip install 'draftwire[...]'`` brings.
    packages: that have to be there.
    """

    target: str
    drafter: str
    extra: str
    packages: tuple[str, ...]
    tokenizer: str = ""
    compare: str = ""


ENGINES: Final = {
    "hf": EngineEntry(
        "draftwire.engines.hf:load_target",
        "draftwire.engines.hf:load_drafter",
        "hf",
        ("torch", "transformers"),
        "draftwire.engines.hf:read_tokenizer",
        "draftwire.engines.hf:compare_tokenizers",
    ),
    "dspark": EngineEntry(
        "draftwire.engines.hf:load_target",
        "draftwire.engines.dspark.loader:load_drafter",
        "hf",
        ("torch", "transformers"),
    ),
}


def require_engine(name: str = DEFAULT_ENGINE) -> EngineEntry:
    """Return an engine whose packages are installed; ConfigurationError says what is missing."""
    entry = ENGINES.get(name)
    if entry is None:
        raise ConfigurationError(f"there is no engine {name!r}: one of {', '.join(ENGINES)}")
    for package in entry.packages:
        try:
            __import__(package)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"this needs {' and '.join(entry.packages)}, and {error.name} is not installed:"
                f" pip install 'draftwire[{entry.extra}]'"
            ) from error
    return entry


def load_target(folder: Path | None, *, device: str, name: str = DEFAULT_ENGINE) -> LoadedTarget:
    """Load a target; None = the embedded one. Raises ConfigurationError and ModelError."""
    loaded: LoadedTarget = _function(require_engine(name).target)(folder, device=device)
    return loaded


def load_drafter(
    folder: Path | None,
    *,
    device: str,
    serve_as: ServedVocabulary | None = None,
    target: Path | None = None,
    name: str | None = None,
) -> DraftEngine[Any]:
    """Load a drafter; None = the embedded one. Raises ConfigurationError and ModelError.

    target: the folder of its target, for what a checkpoint leaves there. name: of its engine; None
    = by what the folder's config.json says.
    """
    load = _function(require_engine(name or engine_of(folder)).drafter)
    engine: DraftEngine[Any] = load(folder, device=device, serve_as=serve_as, target=target)
    return engine


def engine_of(folder: Path | None) -> str:
    """Return the name of the engine that loads a drafter's folder; None = the embedded one."""
    return "dspark" if folder is not None and is_block_drafter(folder) else DEFAULT_ENGINE


def read_tokenizer(
    folder: Path | None, *, role: str, name: str = DEFAULT_ENGINE
) -> tuple[Any, int]:
    """Load a tokenizer alone, with the V it stands for; None = the embedded one of that role."""
    found: tuple[Any, int] = _function(require_engine(name).tokenizer)(folder, role=role)
    return found


def compare_tokenizers(
    target: tuple[Any, int], drafter: tuple[Any, int], name: str = DEFAULT_ENGINE
) -> str:
    """Return in words what two tokenizers share, and where they differ first."""
    found: str = _function(require_engine(name).compare)(target, drafter)
    return found


def _function(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)
