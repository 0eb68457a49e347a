"""Text token by token, of every kind of tokenizer, against the decode of the whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.text.decoder import TextDecoder
from draftwire.text.detokenizer import Detokenizer
from tests.text.tokenizers_at_hand import BYTE_NAMES, KINDS, SPECIAL, made

SEQUENCES = 1_000  # of each kind, with special tokens and without
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def ids_of(tokenizer: Any, *tokens: str) -> list[int]:
    ids: list[int] = tokenizer.convert_tokens_to_ids(list(tokens))
    assert tokenizer.convert_ids_to_tokens(ids) == list(tokens)
    return ids


def sequence(random_ids: random.Random, detokenizer: Detokenizer, size: int) -> list[int]:
    """Ids of any kind, or of bytes for the most part, or a few again and again."""
    everything = list(range(size + 2))  # two have no token
    runs = [token for token in everything if detokenizer.in_run(token)]
    pool = random_ids.choice(
        [everything, [*runs, *random_ids.sample(everything, 5)], random_ids.sample(everything, 4)]
    )
    return random_ids.choices(pool, k=random_ids.randint(1, 20))


@pytest.mark.parametrize("special", [False, True], ids=["shown", "special"])
@pytest.mark.parametrize("kind", KINDS)
def test_at_every_step_the_text_is_the_decode_of_the_whole(kind: str, special: bool) -> None:
    """Case M32, and its kind: bytes that are invalid together, continuations, first spaces."""
    tokenizer = made(kind)
    detokenizer = Detokenizer(tokenizer, special=special)
    random_ids = random.Random(f"{kind} {special}")
    for _ in range(SEQUENCES):
        ids = sequence(random_ids, detokenizer, len(tokenizer))
        text, certain = TextDecoder(detokenizer), ""
        for end, token in enumerate(ids, 1):
            certain += text.add(token)
            assert certain + text.tail == detokenizer(ids[:end]), ids[:end]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_certain_stays_whatever_comes(kind: str) -> None:
    detokenizer = Detokenizer(made(kind))
    random_ids = random.Random(7)
    for _ in range(200):
        ids = sequence(random_ids, detokenizer, len(made(kind)))
        text, certain = TextDecoder(detokenizer), ""
        for token in ids:
            certain += text.add(token)
            assert detokenizer(ids).startswith(certain)


@pytest.mark.parametrize("kind", KINDS)
def test_behind_a_prompt_it_is_what_the_whole_has_more(kind: str) -> None:
    tokenizer = made(kind)
    detokenizer = Detokenizer(tokenizer)
    random_ids = random.Random(3)
    for _ in range(300):
        ids = sequence(random_ids, detokenizer, len(tokenizer))
        prompt = [token for token in ids if not detokenizer.in_run(token)]
        if detokenizer(prompt).endswith(REPLACEMENT):
            continue  # it has its own test
        text = TextDecoder(detokenizer, prompt)
        certain = "".join(map(text.add, ids))
        assert detokenizer(prompt) + certain + text.tail == detokenizer([*prompt, *ids])


@given(st.text(alphabet="aé€😀你 \n", max_size=12), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_bytes_one_by_one(text: str, cut: int) -> None:
    """Any text in pieces of one byte, behind any of its beginnings: characters come out whole."""
    tokenizer = made("byte_level")
    ids = ids_of(tokenizer, *(BYTE_NAMES[byte] for byte in text.encode()))
    decoder = TextDecoder(Detokenizer(tokenizer), ids[:cut])
    pieces = [decoder.add(token) for token in ids[cut:]]
    before = text.encode()[:cut].decode(errors="ignore")
    assert before + "".join(pieces) + decoder.tail == text
    assert all(piece in text for piece in pieces)


@pytest.mark.parametrize("kind", ["llama", "gemma", "metaspace", "unigram_bytes"])
def test_the_first_space_of_an_answer_is_kept(kind: str) -> None:
    """Case M10: "Hello" and then "▁world", "!"."""
    tokenizer = made(kind)
    prompt = ids_of(tokenizer, "<s>", "▁Hello")
    text = TextDecoder(Detokenizer(tokenizer), prompt)
    assert [text.add(token) for token in ids_of(tokenizer, "▁world", "!")] == [" world", "!"]


def test_a_word_that_goes_on_is_joined_to_the_prompt() -> None:
    """Case M31: no "##" is ever part of a text."""
    tokenizer = made("wordpiece")
    text = TextDecoder(Detokenizer(tokenizer), ids_of(tokenizer, "Hello"))
    pieces = [text.add(token) for token in ids_of(tokenizer, "##ab", "##a", "world")]
    assert pieces == ["ab", "a", " world"]


def test_a_run_of_bytes_waits_for_its_end() -> None:
    """Case M32: the euro sign is none if one byte behind it is not UTF-8."""
    tokenizer = made("llama")
    euro = ids_of(tokenizer, "<0xE2>", "<0x82>", "<0xAC>")
    (bad, word, end) = ids_of(tokenizer, "<0xFF>", "a", SPECIAL[2])
    for behind, run in (([word], "€"), ([bad, word], 4 * REPLACEMENT), ([end, word], "€")):
        text = TextDecoder(Detokenizer(tokenizer))
        pieces = [text.add(token) for token in [*euro, *behind]]
        assert pieces == ["", "", "", *[""] * (len(behind) - 1), run + "a"]
    text = TextDecoder(Detokenizer(tokenizer))
    assert ["".join((text.add(token), text.tail)) for token in euro] == ["�", "��", "€"]


def test_characters_in_pieces_come_out_one_by_one() -> None:
    """Whole sentences in tokens that are parts of characters are not held back to their end."""
    tokenizer = made("byte_level")
    ids = ids_of(tokenizer, *(BYTE_NAMES[byte] for byte in "你好€你好".encode()))
    text = TextDecoder(Detokenizer(tokenizer))
    assert [piece for piece in map(text.add, ids) if piece] == list("你好€你好")


class Counting(Detokenizer):
    """Counts the ids that are decoded."""

    decoded = 0

    def __call__(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return super().__call__(ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", ["any", "bytes", "broken bytes", "one", "waiting"])
def test_decoding_is_linear_in_the_tokens(kind: str, pool: str) -> None:
    """Case M11: 8,000 tokens decode under three times the ids of 4,000, and few for each."""
    tokenizer = made(kind)
    runs = [token for token in range(len(tokenizer)) if Detokenizer(tokenizer).in_run(token)]
    alone = Detokenizer(tokenizer).alone
    pools = {
        "any": list(range(len(tokenizer))),
        "bytes": [token for token in runs if alone(token) != REPLACEMENT],
        "broken bytes": runs,
        "one": [0],
        "waiting": [t for t in range(len(tokenizer)) if alone(t) in ("", REPLACEMENT)],
    }
    if not pools[pool]:
        return
    decoded = []
    for size in (4_000, 8_000):
        detokenizer = Counting(tokenizer)
        text = TextDecoder(detokenizer)
        ids = random.Random(1).choices(pools[pool], k=size)
        certain = "".join(map(text.add, ids))
        assert certain + text.tail == Detokenizer(tokenizer)(ids)
        decoded.append(detokenizer.decoded)
    assert decoded[1] < 3 * decoded[0]
    assert decoded[1] < 40 * 8_000
