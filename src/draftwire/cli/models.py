"""Models as the commands use them: loaded once, with their tokenizer, quietly and visibly."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from draftwire.bounds import shown
from draftwire.cli.progress import working
from draftwire.cli.prompts import Prompt
from draftwire.engines.registry import load_target, require_engine
from draftwire.errors import ConfigurationError, ModelError
from draftwire.text.detokenizer import Detokenizer
from draftwire.text.prompt import encode, encode_rendered, render_chat

LEAST_CHARACTERS: Final = 1 << 16  # of a prompt, always tokenised
CHARACTERS_A_TOKEN: Final = 16  # of the context; text has about four


def prepare_torch(threads: int) -> None:
    """Import the engine's libraries and set their CPU threads (0: their own choice).

    Raises ConfigurationError when they are not installed.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    require_engine()
    if threads:
        import torch

        torch.set_num_threads(threads)


def require_folder(folder: Path | None) -> None:
    """Refuse at once, before anything is imported or loaded, what can be no model folder.

    Raises ModelError; None, the embedded model, is fine.
    """
    if folder is None:
        return
    path = folder.expanduser()
    try:
        there = path.is_dir()
    except OSError as error:  # a name that no file system takes
        raise ModelError(f"{shown(str(path))} is not a folder: {error.strerror}") from error
    if not there:
        raise ModelError(f"{path} is not a folder; give the folder of a transformers model")
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} is not a transformers model: it has no config.json")


class Target:
    """A target engine with the tokenizer that turns text into ids and back."""

    def __init__(self, folder: Path | None, *, device: str, threads: int) -> None:
        """Load the folder, or the embedded target; ConfigurationError when that cannot be done."""
        require_folder(folder)
        with working("loading the target"):
            prepare_torch(threads)
            loaded = load_target(folder, device=device)
        self.engine: Any = loaded.engine
        self.folder = loaded.folder
        self.self_test = loaded.self_test
        self.tokenizer: Any = loaded.tokenizer

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Return the ids of a prompt, or of a chat up to where the answer begins.

        Raises ConfigurationError as ``encode`` does, and for a chat without a template.
        """
        if not prompt.messages:
            return self.encode(prompt.text)
        text = render_chat(self.tokenizer, prompt.messages)
        self._require_length(text)
        return _tokens(encode_rendered(self.tokenizer, text))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, with what the tokenizer puts before every text, once.

        Raises ConfigurationError for one without tokens, and, before a tokenizer spends hundreds of
        bytes of memory on each of its characters, for one that is far longer than the context.
        """
        self._require_length(text)
        return _tokens(encode(self.tokenizer, text))

    def _require_length(self, text: str) -> None:
        most = max(LEAST_CHARACTERS, CHARACTERS_A_TOKEN * self.engine.max_context)
        if len(text) > most:
            raise ConfigurationError(
                f"the prompt has {len(text)} characters, and more than {most} are not tokenised for"
                f" the target's context of {self.engine.max_context} tokens: shorten it"
            )

    @cached_property
    def decode(self) -> Detokenizer:
        """Ids to text, special tokens left out."""
        return Detokenizer(self.tokenizer)


def _tokens(ids: list[int]) -> list[int]:
    if not ids:
        raise ConfigurationError("the prompt has no tokens: give at least one character")
    return ids
