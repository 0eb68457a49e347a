"""Streaming text: whole characters only, stop strings never shown, kinds told apart."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire.cli.screen import TextStream, dress, legend, wants_colour
from draftwire.verifier.generate import Emission, Kind
from draftwire.verifier.stop import Finish, cut

KINDS = list(Kind)


def decode_bytes(tokens: Sequence[int]) -> str:
    """A tokenizer whose tokens are bytes, replacing what is no character (yet)."""
    return bytes(tokens).decode("utf-8", errors="replace")


def streamed(tokens: Sequence[int], stop: Sequence[str] = (), **options: bool) -> list[str]:
    pieces: list[str] = []
    stream = TextStream(pieces.append, decode_bytes, stop, **options)
    taken: list[int] = []
    for index, token in enumerate(tokens):
        taken.append(token)
        stream.add(Emission(token, KINDS[index % len(KINDS)], index))
        if any(string in decode_bytes(taken) for string in stop):
            break  # where the text ends
    stream.finish(cut(decode_bytes(taken), stop))
    return pieces


@given(
    text=st.text(alphabet="ab€ü\n😀", max_size=12),
    stop=st.lists(st.text("ab€", min_size=1, max_size=3), max_size=2),
)
def test_the_pieces_are_the_text_before_the_stop_string(text: str, stop: list[str]) -> None:
    ends = [end for end in range(len(text) + 1) if any(s in text[:end] for s in stop)]
    whole = text[: ends[0]] if ends else text
    assert "".join(streamed(text.encode(), stop)) == cut(whole, stop)


@given(st.text(alphabet="abc", max_size=10), st.text(alphabet="abc", min_size=1, max_size=3))
def test_a_stop_string_is_never_shown_even_in_part_of_what_came_after(text: str, stop: str) -> None:
    shown = ""
    for end in range(len(text) + 1):
        pieces: list[str] = []
        stream = TextStream(pieces.append, decode_bytes, (stop,))
        for index, token in enumerate(text[:end].encode()):
            stream.add(Emission(token, Kind.ACCEPTED, index))
        shown = "".join(pieces)
        assert cut(text, (stop,)).startswith(shown)


def test_a_character_in_pieces_is_written_once_it_is_whole() -> None:
    assert streamed("€".encode()) == ["€"]


def test_bytes_that_never_become_a_character_are_shown_at_the_end() -> None:
    assert "".join(streamed(b"a\xe2\x82")) == decode_bytes(b"a\xe2\x82")


def test_text_comes_out_as_soon_as_it_is_certain() -> None:
    pieces: list[str] = []
    stream = TextStream(pieces.append, decode_bytes, ("END",))
    for index, token in enumerate(b"xyE"):
        stream.add(Emission(token, Kind.ACCEPTED, index))
    assert pieces == ["x", "y"]
    stream.add(Emission(ord("!"), Kind.BONUS, 3))
    assert "".join(pieces) == "xyE!"


def test_the_last_token_is_written_though_it_ends_in_a_replacement_character() -> None:
    pieces: list[str] = []
    stream = TextStream(pieces.append, decode_bytes)
    stream.add(Emission(0xE2, Kind.ACCEPTED, 0, Finish.MAX_TOKENS))
    assert pieces == ["\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("colour", [False, True])
def test_accepted_corrected_and_bonus_are_told_apart(colour: bool) -> None:
    dressed = [dress("x", kind.value, colour=colour, marks=True) for kind in KINDS]
    told_apart = dressed if colour else dressed[:3]
    assert len(set(told_apart)) == len(told_apart)
    assert all(word in legend(colour) for word in ("accepted", "corrected", "bonus"))


def test_without_marks_or_colour_it_is_the_text_alone() -> None:
    assert "".join(streamed(b"abcd")) == "abcd"
    assert "".join(streamed(b"abcd", marks=True)) == "a‹b›«c»d"
    assert "".join(streamed(b"a", colour=True)) == "\x1b[32ma\x1b[0m"


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "variables", "colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_only_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str], colour: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wants_colour(Stream(terminal)) is colour
