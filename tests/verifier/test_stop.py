"""Where a text ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftwire.errors import ConfigurationError
from draftwire.verifier.stop import Finish, StopRules

PIECES = ["a", "b", "ab", "", "xy", "stop", "é"]


def decode(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def rules(**changes: object) -> StopRules:
    values: dict[str, object] = {"end_tokens": frozenset(), "max_tokens": 100, "room": 100}
    return StopRules(**(values | changes))  # type: ignore[arg-type]


def ends_at(stop: StopRules, tokens: Sequence[int]) -> int | None:
    for index, token in enumerate(tokens):
        if stop.add(token) is not None:
            return index
    return None


def test_an_end_token_ends_the_text_with_itself() -> None:
    stop = rules(end_tokens=frozenset({3, 4}))
    assert ends_at(stop, [0, 1, 4, 0]) == 2
    assert stop.finish is Finish.END_TOKEN
    assert stop.tokens == [0, 1, 4]


def test_limits_of_the_text_and_of_the_context() -> None:
    stop = rules(max_tokens=3)
    assert ends_at(stop, [0] * 9) == 2
    assert stop.finish is Finish.MAX_TOKENS
    stop = rules(room=2)
    assert stop.left == 2
    assert ends_at(stop, [0] * 9) == 1
    assert stop.finish is Finish.CONTEXT
    assert stop.left == 0


@pytest.mark.parametrize(
    ("tokens", "at"),
    [
        ([0, 1, 0], 1),  # "a" "b"
        ([1, 2, 0], 1),  # inside one token
        ([0, 3, 3, 3, 3, 3, 3, 1], 7),  # over many empty tokens
        ([1, 0, 0, 6, 1], None),
    ],
)
def test_a_stop_string_over_any_token_borders(tokens: list[int], at: int | None) -> None:
    assert ends_at(rules(stop=("ab",), decode=decode), tokens) == at


def test_every_stop_string_ends_at_the_first_token_that_completes_one() -> None:
    """All texts of up to six tokens: the tail that is looked at finds what the whole text holds."""
    stops = ("bxy", "aba", "stopstop")
    texts = [[]]
    for _ in range(5):
        texts = [[*text, token] for text in texts for token in (0, 1, 2, 3, 4, 5)]
    for text in texts:
        expected = next(
            (i for i in range(len(text)) if any(s in decode(text[: i + 1]) for s in stops)), None
        )
        assert ends_at(rules(stop=stops, decode=decode), text) == expected


def test_a_stop_string_in_a_long_text() -> None:
    stop = rules(stop=("xyxyxyab",), decode=decode, max_tokens=1000, room=1000)
    tokens = [0] * 500 + [4, 4, 4, 0, 1]
    assert ends_at(stop, tokens) == len(tokens) - 1


def test_stop_strings_without_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="decode"):
        rules(stop=("x",))


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [("one two three", ("three", "two"), "one "), ("one", ("two",), "one")],
)
def test_the_text_is_what_stands_before_the_first_stop_string(
    text: str, stop: tuple[str, ...], left: str
) -> None:
    judged = rules(stop=stop, decode=lambda ids: "".join(map(chr, ids)), max_tokens=len(text))
    shown = ""
    for character in text:
        judged.add(ord(character))
        shown += judged.piece
        if judged.finish is not None:
            break
    assert judged.text == shown == left
