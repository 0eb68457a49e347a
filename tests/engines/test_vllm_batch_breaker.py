"""Steps that do not pay are target-only, by times of finished steps alone; the law stays."""

from __future__ import annotations

from draftwire.engines.vllm.batch_breaker import BatchBreaker
from draftwire.engines.vllm.speculation import ProposeRequest, SpeculationState
from draftwire.verifier.breaker import BreakerConfig, Choice
from draftwire.verifier.miss import MissReason
from testing.harness.clock import Clock
from testing.toys.enumeration import WordTree, law_of
from tests.engines.test_vllm_speculation import (
    POLICY,
    PROMPT,
    everything,
    first_two,
    scores_of,
    step_of,
    targets_law,
    text_of,
    toy_state,
    two_of_three,
)


def play(
    breaker: BatchBreaker, clock: Clock, steps: int, rows: int, *, drafted: float
) -> list[Choice]:
    """Steps of ``rows`` requests: 1 s alone, with drafts ``drafted`` s for 2 tokens a row."""
    choices = []
    for _ in range(steps):
        choice = breaker.admits(rows)
        choices.append(choice)
        if choice is Choice.DRAFT:
            breaker.asked(drafted - 1, mixed=False)
        breaker.began(comparable=True)
        clock.now += 1
        breaker.ended(rows, rows * (2 if choice is Choice.DRAFT else 1))
    return choices


def test_each_size_of_batch_has_its_own_verdict() -> None:
    """One request gains, eight lose; neither disturbs the other."""
    clock = Clock(0.0)
    breaker = BatchBreaker(clock=clock)
    one: list[Choice] = []
    eight: list[Choice] = []
    for _ in range(40):
        one += play(breaker, clock, 5, 1, drafted=1.2)
        eight += play(breaker, clock, 5, 8, drafted=9.0)
    assert Choice.PAUSE not in one and one.count(Choice.SAMPLE) < 12
    assert eight.count(Choice.PAUSE) > 150


def test_what_cannot_be_compared_is_not_booked() -> None:
    clock = Clock(0.0)
    breaker = BatchBreaker(BreakerConfig(block=1), clock)
    for step in range(60):
        breaker.admits(4)
        breaker.asked(99.0, mixed=step % 3 == 0)
        breaker.began(comparable=step % 3 != 1)
        clock.now += 1
        breaker.ended(5 if step % 3 == 2 else 4, 8)
    breaker.ended(4, 4)  # no step has begun
    assert breaker.admits(4) is not Choice.PAUSE


def test_times_between_steps_do_not_count() -> None:
    """An engine without requests waits; that is no cost of anything."""
    clock = Clock(0.0)
    breaker = BatchBreaker(clock=clock)
    choices = []
    for _ in range(100):
        choices += play(breaker, clock, 1, 1, drafted=1.2)
        clock.now += 1000
    assert Choice.PAUSE not in choices


class ByText(BatchBreaker):
    """Pauses by what has been committed: the whole history may decide, the next round may not."""

    def __init__(self, speculation: SpeculationState) -> None:
        super().__init__()
        self.speculation = speculation

    def admits(self, rows: int) -> Choice:
        request = self.speculation.requests["request"]
        last = request.drafting.asking.tokens[-1]  # type: ignore[attr-defined]
        return (Choice.DRAFT, Choice.PAUSE, Choice.SAMPLE)[last]


def test_the_law_is_the_targets_whatever_finished_rounds_decide() -> None:
    for allowed in (two_of_three, first_two):
        with toy_state() as (speculation, shared):
            speculation.breaker = ByText(speculation)

            def run(tree: WordTree, speculation=speculation, shared=shared, allowed=allowed):
                shared.tree = tree
                return text_of(speculation, allowed, everything, 3)

            assert law_of(run, 2) == targets_law(allowed, 3)
            misses = speculation.metrics.labelled("misses")
        assert misses[MissReason.BREAKER_OPEN.value] > 0


def test_requests_with_a_seed_are_drafted_all_the_same() -> None:
    class Paused(BatchBreaker):
        def admits(self, rows: int) -> Choice:
            return Choice.PAUSE

    with toy_state() as (speculation, shared):
        shared.tree = WordTree(4)
        speculation.breaker = Paused()
        for name in ("seeded", "free"):
            active = speculation.begin(name, PROMPT, 1, drafted=True)
            step_of(speculation, active, scores_of(first_two, PROMPT, ()), ())
        wanted = [ProposeRequest("seeded", POLICY, seeded=True), ProposeRequest("free", POLICY)]
        assert set(speculation.propose(wanted, 1.0)) == {"seeded"}
        assert speculation.metrics.labelled("misses") == {MissReason.BREAKER_OPEN.value: 1}
        speculation.close()
