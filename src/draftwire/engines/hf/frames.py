"""What ``model.generate`` has and gives to no custom decoding method: its streamer and tokenizer.

transformers hands both to its own methods alone. They are looked for in the frames of the call;
where that finds nothing, nothing is changed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from transformers.generation.utils import GenerationMixin


def _code(name: str) -> CodeType | None:
    method = getattr(GenerationMixin, name, None)
    return getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None


_GENERATE = _code("generate")
_KWARGS = _code("_extract_generation_mode_kwargs")


def streamer_of_generate(model: Any) -> Any:
    """Return the streamer of the innermost ``model.generate`` that is running, or None.

    generate has put the prompt into it; without its end a reader of the stream would wait for ever.
    """
    for frame in _frames():
        if frame.f_code is _GENERATE and frame.f_locals.get("self") is model:
            return frame.f_locals.get("streamer")
    return None


class DecodingFunction:
    """A function for ``custom_generate`` that ``generate(tokenizer=...)`` may be called with.

    generate takes ``tokenizer`` out of its arguments for its own methods and then looks at the
    signature of a custom one for what else to pass; so the signature puts it back, and
    ``stop_strings`` find it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Stand for ``function``."""
        self._function = function
        self._own = inspect.signature(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self._function(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's own."""
        for frame in _frames():
            if frame.f_code is _KWARGS:
                _give_back(frame.f_locals)
        return self._own


def _give_back(there: dict[str, Any]) -> None:
    kwargs, taken = there.get("kwargs"), there.get("generation_mode_kwargs")
    if isinstance(kwargs, dict) and isinstance(taken, dict) and "tokenizer" in taken:
        kwargs.setdefault("tokenizer", taken["tokenizer"])


def _frames() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
