"""The report at the end of a run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwire.verifier.report import Report

WIDTH = 25


def line(name: str, text: str) -> str:
    """Return one line of a report: what it is, and what it was."""
    return f"{name:<{WIDTH}} {text}"


def report_lines(report: Report) -> list[str]:
    """Return what one generation did, a line each; drafting is left out where there was none."""
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
            line("drafted", drafted(report)),
        ]
    if report.misses:
        reasons = ", ".join(f"{reason.value} {n}" for reason, n in sorted_counts(report))
        lines.append(line("rounds without proposal", reasons))
    return lines


def sorted_counts(report: Report) -> list[tuple[object, int]]:
    """Return the misses by reason, the most frequent first."""
    return list(report.misses.most_common())


def acceptance(report: Report) -> str:
    """Return, for each position, the share of all verified proposals that it was accepted in."""
    pairs = zip(report.accepted_by_position, report.proposed_by_position, strict=True)
    shares = [f"{accepted / proposed:.2f}" if proposed else "-" for accepted, proposed in pairs]
    return "  ".join(shares)


def drafted(report: Report) -> str:
    """Return where every draft that was paid for went."""
    discarded = sum(report.discarded.values())
    return (
        f"{report.drafted} = {report.verified} verified + {discarded} discarded;"
        f" verified = {report.accepted} accepted + {report.rejected} rejected"
        f" + {report.overtaken} behind a rejection + {report.after_end} behind the end"
    )


def rates(remote: Sequence[float], colocated: Sequence[float], target_only: Sequence[float]) -> str:
    """Return tokens/s of the three ways to run the pair, and how remote stands beside each.

    Each sequence holds one rate a repeat; repeats with the same index ran one after another, so
    the ratios are medians of ratios within a repeat and what slows the machine cancels.
    """
    from statistics import median

    beside_colocated = median(a / b for a, b in zip(remote, colocated, strict=True))
    beside_target = median(a / b for a, b in zip(remote, target_only, strict=True))
    return (
        f"remote {median(remote):.1f}"
        f"   colocated {median(colocated):.1f} (remote is {beside_colocated:.2f}x)"
        f"   target-only {median(target_only):.1f} (remote is {beside_target:.2f}x)"
    )
