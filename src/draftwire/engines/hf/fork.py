"""A copy of a logits processor with the state that it has now, to be asked about drafts."""

from __future__ import annotations

import copy
import functools
from types import MethodType
from typing import Any, Final

import torch
from transformers import PreTrainedTokenizerBase

# Never changed by asking, and large: shared between a processor and its copies.
_SHARED: Final = (torch.nn.Module, PreTrainedTokenizerBase)
_SHARED_NAMES: Final = frozenset(
    {
        ("xgrammar", "CompiledGrammar"),
        ("xgrammar", "Grammar"),
        ("xgrammar", "GrammarCompiler"),
        ("xgrammar", "TokenizerInfo"),
        ("outlines_core", "Index"),
        ("outlines_core", "Vocabulary"),
        ("llguidance", "LLTokenizer"),
        ("tokenizers", "Tokenizer"),
    }
)
# How libraries of grammars name it: xgrammar's GrammarMatcher.fork, llguidance's
# LLMatcher.deep_copy.
_COPIED_BY: Final = ("fork", "deep_copy")
_LEAVES: Final = (str, bytes, int, float, complex, type(None), torch.Tensor, type)


def fork(processor: Any) -> Any:
    """Return a copy that answers from here on as ``processor`` would, and changes nothing in it.

    A matcher inside it is copied by its own ``fork`` or ``deep_copy`` where it has one, everything
    else by ``copy.deepcopy``; models, tokenizers and compiled grammars are shared, and so are
    functions with what they close over. Raises whatever a part that cannot be copied raises.
    """
    memo: dict[int, Any] = {}
    _prepare(processor, memo, set())
    return copy.deepcopy(processor, memo)


def _prepare(value: Any, memo: dict[int, Any], seen: set[int]) -> None:
    """Put into ``memo`` every part that deepcopy is to take as it is, or that copies itself."""
    if isinstance(value, _LEAVES) or id(value) in seen:
        return
    seen.add(id(value))
    kind = type(value)
    if (
        isinstance(value, _SHARED)
        or (kind.__module__.split(".")[0], kind.__name__) in _SHARED_NAMES
    ):
        memo[id(value)] = value
        return
    for method in _COPIED_BY:
        if callable(getattr(kind, method, None)):
            memo[id(value)] = getattr(value, method)()
            return
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif isinstance(value, MethodType):
        parts = [value.__self__]
    elif isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    for part in parts:
        _prepare(part, memo, seen)
