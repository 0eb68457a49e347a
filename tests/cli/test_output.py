"""Text as it is made: whole characters, no stop strings, kinds told apart; and the report."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire.cli.output import TextStream, dress, legend, rates, report_lines, wants_colour
from draftwire.session.reasons import DropReason
from draftwire.text.streamed import StreamedText
from draftwire.verifier.emission import Emission, Kind
from draftwire.verifier.miss import MissReason
from draftwire.verifier.report import Report
from draftwire.verifier.stop import Finish

KINDS = list(Kind)


def decode_bytes(tokens: Sequence[int]) -> str:
    """A tokenizer whose tokens are bytes, replacing what is no character (yet)."""
    return bytes(tokens).decode("utf-8", errors="replace")


def cut(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop string found in it."""
    found = [at for at in (text.find(string) for string in stop) if at >= 0]
    return text[: min(found)] if found else text


class Streaming:
    """What a terminal shows of tokens, as ``generate`` writes it."""

    def __init__(self, stop: Sequence[str] = (), **options: bool) -> None:
        self.pieces: list[str] = []
        self.text = StreamedText(decode_bytes, (), tuple(stop))
        self._stream = TextStream(self.pieces.append, **options)

    def add(self, token: int, kind: Kind, index: int = 0, finish: Finish | None = None) -> None:
        self.text.add(token)
        piece = self.text.take(last=finish is not None)
        self._stream.add(Emission(token, kind, index, finish, piece))

    def finish(self) -> None:
        self._stream.finish(self.text.text)


def streamed(tokens: Sequence[int], stop: Sequence[str] = (), **options: bool) -> list[str]:
    stream = Streaming(stop, **options)
    for index, token in enumerate(tokens):
        stream.add(token, KINDS[index % len(KINDS)], index)
        if stream.text.ended:
            break  # where the text ends
    stream.finish()
    return stream.pieces


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
        stream = Streaming((stop,))
        for index, token in enumerate(text[:end].encode()):
            stream.add(token, Kind.ACCEPTED, index)
        shown = "".join(stream.pieces)
        assert cut(text, (stop,)).startswith(shown)


def test_a_character_in_pieces_is_written_once_it_is_whole() -> None:
    assert streamed("€".encode()) == ["€"]


def test_bytes_that_never_become_a_character_are_shown_at_the_end() -> None:
    assert "".join(streamed(b"a\xe2\x82")) == decode_bytes(b"a\xe2\x82")


def test_text_comes_out_as_soon_as_it_is_certain() -> None:
    stream = Streaming(("END",))
    for index, token in enumerate(b"xyE"):
        stream.add(token, Kind.ACCEPTED, index)
    assert stream.pieces == ["x", "y"]
    stream.add(ord("!"), Kind.BONUS, 3)
    assert "".join(stream.pieces) == "xyE!"


def test_the_last_token_is_written_though_it_ends_in_a_replacement_character() -> None:
    stream = Streaming()
    stream.add(0xE2, Kind.ACCEPTED, 0, Finish.MAX_TOKENS)
    assert stream.pieces == ["\N{REPLACEMENT CHARACTER}"]


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


def drafted_report() -> Report:
    report = Report(tokens=9, rounds=4)
    report.proposed(2)
    report.judged(2, accepted=2, kept=2)
    report.proposed(2)
    report.judged(2, accepted=0, kept=0)
    report.proposed(2)
    report.judged(2, accepted=2, kept=1)
    report.missed(DropReason.MISSED_DEADLINE, 2)
    report.traffic.sent, report.traffic.received = 800, 2400
    return report


def test_every_draft_is_in_exactly_one_count() -> None:
    text = "\n".join(report_lines(drafted_report()))
    assert "2.25  (9 in 4 passes)" in text
    assert "0.67  0.33" in text
    assert re.search("mean acceptance length +2.00  of 3 proposals .*acceptance rate 0.50", text)
    assert "300 from the drafter, 100 to it" in text
    assert "8 = 6 verified + 2 discarded" in text
    assert "3 accepted + 1 rejected + 1 behind a rejection + 1 behind the end" in text
    assert "missed_deadline 1" in text
    assert max(map(len, text.splitlines())) < 100


def test_a_run_without_drafts_says_nothing_of_drafts() -> None:
    lines = report_lines(Report(tokens=3, rounds=3))
    assert len(lines) == 1 and "1.00  (3 in 3 passes)" in lines[0]


def test_a_drafter_that_was_never_there_is_said_to_have_been_away() -> None:
    report = Report(tokens=9, rounds=9)
    report.missed(MissReason.BASELINE, 0)
    assert "away" not in report_lines(report)[-1]
    report.missed(MissReason.NO_CONNECTION, 0)
    assert "the drafter was away (baseline 1, no_connection 1)" in report_lines(report)[-1]
    report.proposed(2)
    assert "away" not in report_lines(report)[-1]


def test_rates_are_compared_within_a_turn() -> None:
    # The machine is three times slower in the last turn: the ratios do not see that.
    text = "\n".join(rates([20.0, 22.0, 7.0], [20.0, 22.0, 7.0], [10.0, 11.0, 3.5]))
    assert "20.0 remote" in text
    assert "20.0 colocated in one process, remote is 1.00x" in text
    assert "10.0 target-only, remote is 2.00x" in text
