"""What a report counts, beside a history that was counted by hand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.session.reasons import DropReason
from draftwire.verifier.emission import Emission
from draftwire.verifier.generate import generate
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.stop import Finish
from draftwire.verifier.together import run_together
from draftwire.verifier.totals import Totals
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.paths import drafting
from testing.toys.models import ToyDrafter, ToyTarget, mixed


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


def whole(report: Report) -> bool:
    """Whether every round and every draft is in exactly one count."""
    drafts = report.drafted == report.verified + sum(report.discarded.values())
    judged = report.accepted + report.rejected + report.overtaken + report.after_end
    rounds = report.rounds == report.drafted_rounds + report.target_only_rounds
    passes = report.tokens - report.accepted == report.rounds - (report.after_end > 0)
    return drafts and judged == report.verified and rounds and passes


@dataclass
class Watched(ToyTarget):
    """Looks at the totals in the middle of each round, as another thread may at any time."""

    totals: Totals | None = None
    seen: list[Report] = field(default_factory=list)

    def score(self, *question: Any) -> NDArray[np.float64]:
        if self.totals is not None:
            self.seen.append(self.totals.sum())
        return super().score(*question)


@pytest.mark.parametrize("together", [False, True])
def test_totals_hold_whole_rounds_whenever_they_are_asked(together: bool) -> None:
    vocab = 7
    target = Watched(mixed(vocab, 1), vocab)
    with drafting("colocated", ToyDrafter(mixed(vocab, 2), vocab), target) as client:
        target.totals = client.totals
        last: list[Report] = []

        def look(emission: Emission) -> None:
            last.append(client.totals.sum())

        texts = [
            generate(
                target,
                client,
                (1,),
                Sampling(seed=3, stream=text, max_tokens=40),
                ProposalPolicy(Layout.DENSE, 3, 1.0),
                on_emission=look,
            )
            for text in range(2)
        ]
        if together:
            run_together(
                texts, lambda asked: np.concatenate([target.score(*a) for a in asked]), client
            )
        else:
            for each in texts:
                list(each)
        total = client.totals.sum()
    assert len(target.seen) > 20
    assert all(whole(each) for each in (*target.seen, *last, total))
    assert [each.rounds for each in target.seen] == sorted(each.rounds for each in target.seen)
    # Nothing is lost behind the last token, though the sum was asked for right after it.
    for name in ("tokens", "accepted", "rounds"):
        assert getattr(total, name) == sum(getattr(each.report, name) for each in texts)
    assert total.traffic.sent == sum(each.report.traffic.sent for each in texts)
    assert total.seconds.total == sum(each.report.seconds.total for each in texts)
    assert client.totals.running == 0


def returns(call: Callable[[], object]) -> bool:
    """Whether a call comes back, in a thread that is left behind where it does not."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_a_text_may_be_let_go_in_the_middle_of_a_sum() -> None:
    """Garbage is collected anywhere, also in a call that holds the lock: its texts end there."""
    totals = Totals()
    lasting, dropped = totals.follow(), totals.follow()
    ended = Report(tokens=5, finish=Finish.ABANDONED)

    class Collected(Counter[Any]):
        def items(self) -> Any:
            totals.end(dropped, ended)
            return super().items()

    totals.end(totals.follow(), history())
    totals.update(lasting, Report(tokens=2, misses=Collected()))
    assert returns(totals.sum)
    assert totals.sum().tokens == 7
    assert totals.running == 1
