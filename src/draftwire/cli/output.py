"""What a run shows its user: the text as it is made, the report at its end, and notes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

import click

from draftwire.verifier.miss import MissReason

if TYPE_CHECKING:
    from draftwire.verifier.emission import Emission
    from draftwire.verifier.report import Report

# Keys are the values of draftwire.verifier.emission.Kind.
COLOURS = {"accepted": "32", "corrected": "1;33", "bonus": "1;36", "target_only": "0"}
MARKS = {
    "accepted": ("", ""),
    "corrected": ("‹", "›"),
    "bonus": ("«", "»"),
    "target_only": ("", ""),
}
WIDTH = 25


def wants_colour(stream: TextIO) -> bool:
    """Whether colour may go there: a terminal, and NO_COLOR unset or empty (no-color.org)."""
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return terminal and not os.environ.get("NO_COLOR")


def legend(colour: bool) -> str:
    """Return one line that explains the colours or the marks."""
    names = {"accepted": "accepted", "corrected": "corrected", "bonus": "bonus"}
    return "  ".join(dress(text, kind, colour=colour, marks=True) for kind, text in names.items())


def dress(text: str, kind: str, *, colour: bool, marks: bool) -> str:
    """Return a piece of text in the colour, or else between the marks, of its kind."""
    if colour:
        return f"\x1b[{COLOURS[kind]}m{text}\x1b[0m"
    before, after = MARKS[kind] if marks else ("", "")
    return f"{before}{text}{after}"


class TextStream:
    """Writes the pieces of a text as they become certain, each in the kind of its last token."""

    def __init__(
        self, write: Callable[[str], object], *, colour: bool = False, marks: bool = False
    ) -> None:
        self._write, self._colour, self._marks = write, colour, marks
        self._written = 0
        self._kind = "accepted"

    def add(self, emission: Emission) -> None:
        """Write what has become certain with this token."""
        self._kind = emission.kind.value
        self._show(emission.text)

    def finish(self, text: str) -> None:
        """Write what is left of the ``text``, which may have been given up early."""
        self._show(text[self._written :])

    def _show(self, piece: str) -> None:
        if piece:
            self._written += len(piece)
            self._write(dress(piece, self._kind, colour=self._colour, marks=self._marks))


def line(name: str, text: str) -> str:
    """Return one line of a report: what it is, and what it was."""
    return f"{name:<{WIDTH}} {text}"


def report_lines(report: Report) -> list[str]:
    """Return what one generation did, a line each; drafting is left out where there was none."""
    lost = sum(report.discarded.values())
    lines = [
        line(
            "tokens per target pass",
            f"{report.tokens_per_target_pass:.2f}  ({report.tokens} in {report.rounds} passes)",
        )
    ]
    if report.drafted and not report.verified:
        lines.append(line("drafted", f"{report.drafted} = 0 verified + {lost} discarded"))
    elif report.drafted:
        figures = report.speculative_decoding()
        lines += [
            line(
                "mean acceptance length",
                f"{figures['mean_acceptance_length']:.2f}  of {figures['num_spec_steps']} proposals"
                f" (draft acceptance rate {figures['draft_acceptance_rate']:.2f})",
            ),
            line("acceptance by position", acceptance(report)),
            line(
                "bytes per position",
                f"{report.received_bytes_per_position:,.0f} from the drafter,"
                f" {report.sent_bytes_per_position:,.0f} to it",
            ),
            line("drafted", f"{report.drafted} = {report.verified} verified + {lost} discarded"),
            line(
                "verified",
                f"{report.accepted} accepted + {report.rejected} rejected"
                f" + {report.overtaken} behind a rejection + {report.after_end} behind the end",
            ),
        ]
    if report.misses:
        reasons = ", ".join(f"{reason.value} {n}" for reason, n in report.misses.most_common())
        if not report.drafted and MissReason.NO_CONNECTION in report.misses:
            reasons = f"the drafter was away ({reasons})"
        lines.append(line("rounds without proposal", reasons))
    return lines


def acceptance(report: Report) -> str:
    """Return, for each position, the share of all verified proposals that it was accepted in."""
    pairs = zip(report.accepted_by_position, report.proposed_by_position, strict=True)
    shares = [f"{accepted / proposed:.2f}" if proposed else "-" for accepted, proposed in pairs]
    return "  ".join(shares)


def rates(
    remote: Sequence[float], colocated: Sequence[float], target_only: Sequence[float]
) -> list[str]:
    """Return tokens/s of the three ways to run the pair, and how remote stands beside each.

    Each sequence holds one rate a repeat; repeats with the same index ran one after another, so
    the ratios are medians of ratios within a repeat and what slows the machine cancels.
    """
    from statistics import median

    near = median(a / b for a, b in zip(remote, colocated, strict=True))
    gain = median(a / b for a, b in zip(remote, target_only, strict=True))
    return [
        line("tokens/s", f"{median(remote):.1f} remote"),
        line("", f"{median(colocated):.1f} colocated in one process, remote is {near:.2f}x"),
        line("", f"{median(target_only):.1f} target-only, remote is {gain:.2f}x"),
    ]


class Notes:
    """Says what a run wants the user to know, and nothing twice."""

    def __init__(self) -> None:
        self._told = 0
        self._away: str | None = None

    def away(self, error: Exception) -> None:
        """Say at once that no drafter is there; the run's own note of it is then left out."""
        self._away = str(error)
        click.echo(f"draftwire: {error}; going on with the target alone", err=True)

    def print_new(self, notes: Sequence[str]) -> None:
        """Say those that are new."""
        for note in notes[self._told :]:
            if self._away is None or self._away not in note:
                click.echo(f"draftwire: {note}", err=True)
        self._told = len(notes)
