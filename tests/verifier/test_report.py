"""What a report counts, beside a history that was counted by hand."""

from __future__ import annotations

from draftwire.session.reasons import DropReason
from draftwire.verifier.report import Report


def history() -> Report:
    """Proposals of 3, 3, 2 and 3 drafts that keep 3, 0, 1 and 2; the last text ends after its 2."""
    report = Report()
    for depth, accepted, kept in ((3, 3, 3), (3, 0, 0), (2, 1, 1), (3, 3, 2)):
        report.rounds += 1
        report.proposed(depth)
        report.judged(depth, accepted, kept)
    report.rounds += 1
    report.missed(DropReason.MISSED_DEADLINE, 3)
    return report


FIGURES = {
    "mean_acceptance_length": 1 + 6 / 4,
    "draft_acceptance_rate": 6 / 11,
    "acceptance_histogram": [1, 1, 1, 1],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 6,
    "num_draft_tokens": 11,
    "num_spec_tokens": 3,
}


def test_figures_under_the_names_of_vllm_are_those_counted_by_hand() -> None:
    report = history()
    assert report.speculative_decoding() == FIGURES
    assert report.as_dict()["speculative_decoding"] == FIGURES
    assert report.accepted == FIGURES["num_accepted_draft_tokens"]


def test_figures_of_sums_and_of_nothing() -> None:
    both = history()
    both.add(history())
    doubled = both.speculative_decoding()
    assert doubled["acceptance_histogram"] == [2, 2, 2, 2]
    assert doubled["mean_acceptance_length"] == FIGURES["mean_acceptance_length"]
    nothing = Report().speculative_decoding()
    assert nothing["acceptance_histogram"] == [0] and nothing["mean_acceptance_length"] == 1.0
    assert nothing["num_spec_steps"] == nothing["num_spec_tokens"] == 0
