"""Prompts and chats to ids: what a tokenizer puts before a text stands there once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftwire.errors import ConfigurationError

Message = Mapping[str, Any]
"""Who says what: ``role`` and ``content``, and whatever else a template reads."""


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text, with what the tokenizer puts before every text, but not twice."""
    ids = _ids(tokenizer(text))
    if not text.startswith(tuple(map(str, tokenizer.all_special_tokens)) or ("\0",)):
        return ids
    bare = _ids(tokenizer(text, add_special_tokens=False))
    for size in range(1, len(ids) - len(bare) + 1):
        if ids[size : size + len(bare)] == bare and ids[:size] == bare[:size]:
            return ids[size:]
    return ids


def chat(user: str, system: str | None = None) -> list[Message]:
    """Return the messages of a question, with or without a system message."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": user}]


def render_chat(tokenizer: Any, messages: Sequence[Message]) -> str:
    """Return a chat as the tokenizer's own template writes it, up to where the answer begins.

    Its ids are those of the text without anything that the tokenizer would put before it
    (``encode_rendered``). Raises ConfigurationError where there is no template, or where it refuses
    these messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigurationError(
            "the target's tokenizer has no chat template: give the whole prompt as this model"
            " expects it, without --chat or --messages"
        )
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template is a program of the model's
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigurationError(
            f"the target's chat template does not take these messages: {lines[0]}"
        ) from error
    return str(text)


def encode_rendered(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a rendered chat: the template has written what stands before it."""
    return _ids(tokenizer(text, add_special_tokens=False))


def parse_messages(text: str) -> list[Message]:
    """Return the messages of a JSON list of objects with role and content.

    Raises ConfigurationError with the place of the fault.
    """
    try:
        messages = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigurationError(f"it is not JSON: {error}") from error
    if not isinstance(messages, list) or not messages:
        raise ConfigurationError(
            'it is not a list of at least one message, like [{"role": "user", "content": "TEXT"}]'
        )
    for place, message in enumerate(messages, 1):
        for name in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(name), str):
                raise ConfigurationError(f"message {place} has no {name} that is a string")
    try:
        json.dumps(messages, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError("it holds half a surrogate pair, which is no text") from error
    return messages


def _ids(encoded: Any) -> list[int]:
    return [int(token) for token in encoded["input_ids"]]
