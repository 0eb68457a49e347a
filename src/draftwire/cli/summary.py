"""The report at the end of a run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftwire.verifier.drafter import MissReason

if TYPE_CHECKING:
    from draftwire.verifier.report import Report

WIDTH = 25


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
    if report.drafted:
        lines += [
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
            reasons = f"all of them: the drafter was away ({reasons})"
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
