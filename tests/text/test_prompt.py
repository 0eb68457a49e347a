"""Prompts and chats to ids: one BOS, the tokenizer's own template, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from tokenizers import processors

from draftwire.errors import ConfigurationError
from draftwire.text.prompt import chat, encode, encode_rendered, parse_messages, render_chat
from tests.text.tokenizers_at_hand import made

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools')"
    " }}{% endif %}{{ m.role[0] }}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


def with_bos(kind: str = "byte_level") -> Any:
    """A tokenizer that puts BOS before every text, and has a chat template."""
    tokenizer = copy.deepcopy(made(kind))
    begin = tokenizer.convert_tokens_to_ids("<s>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_a_prompt_has_one_bos_whether_or_not_it_begins_with_it() -> None:
    """Case M12."""
    tokenizer = with_bos()
    begin, a = tokenizer.convert_tokens_to_ids(["<s>", "a"])
    assert tokenizer("<s>a")["input_ids"] == [begin, begin, a]
    assert encode(tokenizer, "a") == encode(tokenizer, "<s>a") == [begin, a]
    assert encode(tokenizer, "a<s>a") == [begin, a, begin, a]
    assert encode(tokenizer, "<|im_end|>a") == tokenizer("<|im_end|>a")["input_ids"]
    assert encode(made("byte_level"), "<s>a") == [begin, a]


def test_a_chat_is_written_by_the_tokenizers_own_template() -> None:
    """Case M12."""
    tokenizer = with_bos()
    text = render_chat(tokenizer, chat("b", "c"))
    assert text == "<s>sc<|im_end|>ub<|im_end|>a"
    ids = encode_rendered(tokenizer, text)
    assert ids.count(tokenizer.bos_token_id) == 1
    whole = tokenizer.apply_chat_template(
        [dict(message) for message in chat("b", "c")], add_generation_prompt=True, return_dict=True
    )
    assert ids == whole["input_ids"]


def test_a_tokenizer_without_a_template_or_a_template_that_refuses_says_so() -> None:
    with pytest.raises(ConfigurationError, match="no chat template"):
        render_chat(made("byte_level"), chat("a"))
    with pytest.raises(ConfigurationError, match="does not take these messages: no tools"):
        render_chat(with_bos(), [{"role": "tool", "content": "a"}])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "not a list"),
        ("[]", "not a list"),
        ('["a"]', "message 1 has no role"),
        ('[{"role": "user"}]', "message 1 has no content"),
        (
            '[{"role": "user", "content": "a"}, {"role": 1, "content": "a"}]',
            "message 2 has no role",
        ),
        ('[{"role": "user", "content": ["a"]}]', "message 1 has no content"),
        ('[{"role": "user", "content": "\\ud800"}]', "surrogate"),
    ],
)
def test_messages_that_are_none_are_refused_with_the_place(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_messages(text)


def test_messages_are_taken_with_what_else_they_say() -> None:
    messages = [{"role": "user", "content": "ü", "name": "Ada"}]
    assert parse_messages(json.dumps(messages)) == messages
