"""Stop strings in streaming text, of every kind of tokenizer, against a search of the whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from draftwire.text.detokenizer import Detokenizer
from draftwire.text.streamed import StreamedText
from tests.text.test_decoder import ids_of, sequence
from tests.text.tokenizers_at_hand import KINDS, SPECIAL, made


def told(
    tokenizer: Any, prompt: Sequence[int], ids: Sequence[int], *stop: str
) -> tuple[str, int | None]:
    """What is shown of a text, and the token that ends it."""
    text, shown = StreamedText(Detokenizer(tokenizer), prompt, stop), ""
    for index, token in enumerate(ids):
        ended = text.add(token)
        shown += text.take(last=ended or index == len(ids) - 1)
        if ended:
            assert shown == text.text
            return shown, index
    assert shown == text.text
    return shown, None


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_ends_before_the_first_stop_string_of_the_whole(kind: str) -> None:
    """At the very token with which the decode of the whole holds it, and nowhere else."""
    tokenizer = made(kind)
    detokenizer = Detokenizer(tokenizer)
    random_ids = random.Random(11)
    stopped = 0
    for _ in range(400):
        ids = sequence(random_ids, detokenizer, len(tokenizer))
        whole = detokenizer(ids)
        begin = random_ids.randrange(len(whole) + 1)
        stop = tuple(
            text
            for text in (whole[begin : begin + random_ids.randint(1, 4)], "ab", "a b")
            if text and not any(name in text for name in SPECIAL)
        )
        texts = [detokenizer(ids[:end]) for end in range(1, len(ids) + 1)]
        at = next((i for i, text in enumerate(texts) if any(s in text for s in stop)), None)
        shown, index = told(tokenizer, (), ids, *stop)
        assert index == at
        if at is None:
            assert shown == whole
        else:
            stopped += 1
            found = [place for place in map(texts[at].find, stop) if place >= 0]
            assert shown == texts[at][: min(found)]
    assert stopped > 40


def test_a_special_token_is_a_stop_string() -> None:
    """Case M9: the text leaves it out, and yet it ends the text."""
    for kind in KINDS:
        tokenizer = made(kind)
        word = next(t for t in range(len(tokenizer)) if Detokenizer(tokenizer).alone(t) == "a")
        end, begin = ids_of(tokenizer, "<|im_end|>", "<s>")
        shown, index = told(tokenizer, (), [word, begin, word, end, word], "<|im_end|>")
        assert index == 3
        assert shown == Detokenizer(tokenizer)([word, begin, word])
        assert told(tokenizer, (), [word, begin, word], "<|im_end|>")[1] is None


def test_a_stop_string_of_text_and_a_special_token() -> None:
    """The text before the special token that belongs to the stop string is not shown."""
    tokenizer = made("byte_level")
    a, b, end, line = ids_of(tokenizer, "a", "b", "<|im_end|>", "Ċ")
    stops = ("\n<|im_end|>", "b<|im_end|>a")
    assert told(tokenizer, (), [a, line, end, a], *stops) == ("a", 2)
    assert told(tokenizer, (), [a, b, end, a, b], *stops) == ("a", 3)
    assert told(tokenizer, (), [a, line, a, line], *stops) == ("a\na\n", None)
    text = StreamedText(Detokenizer(tokenizer), (), stops)
    pieces = []
    for token in (a, line, b, a):
        text.add(token)
        pieces.append(text.take())
    assert pieces == ["a", "", "\n", "ba"]  # what may begin a stop string waits


def test_a_stop_string_over_a_special_token_that_is_not_shown() -> None:
    tokenizer = made("byte_level")
    a, b, begin = ids_of(tokenizer, "a", "b", "<s>")
    assert told(tokenizer, (), [b, a, begin, b], "ab") == ("b", 3)


def test_a_first_space_is_part_of_a_stop_string() -> None:
    """Case M10: a stop " world" behind the prompt "Hello"."""
    for kind in ("llama", "gemma", "metaspace", "unigram_bytes"):
        tokenizer = made(kind)
        prompt, ids = ids_of(tokenizer, "▁Hello"), ids_of(tokenizer, "▁world", "!")
        assert told(tokenizer, prompt, ids, " world") == ("", 0)
        assert told(tokenizer, prompt, ids) == (" world!", None)


def test_a_continuation_is_no_stop_string() -> None:
    """Case M31: "##" stands in tokens of WordPiece and in no text of them."""
    tokenizer = made("wordpiece")
    ids = ids_of(tokenizer, "Hello", "##ab", "world", "##a")
    assert told(tokenizer, (), ids, "##") == ("Helloab worlda", None)
    assert told(tokenizer, ids[:1], ids[1:], "##") == ("ab worlda", None)
