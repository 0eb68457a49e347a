"""Steps that do not pay are target-only, by times of finished steps alone; the law stays."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.engines.vllm.batch_breaker import BatchBreaker
from draftwire.engines.vllm.speculation import ProposeRequest, SpeculationState
from draftwire.verifier.breaker import BreakerConfig, Choice, Gain, RequestBreaker
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
    breaker: BatchBreaker,
    clock: Clock,
    steps: int,
    rows: Sequence[RequestBreaker],
    *,
    drafted: float,
    tokens: Sequence[int] | None = None,
) -> list[list[Choice]]:
    """Steps of these requests: 1 s alone, with drafts ``drafted`` s for 2 tokens a row, or so many.

    Returns the choices of each step, a row.
    """
    made = []
    for _ in range(steps):
        choices = breaker.admits(rows, len(rows))
        made.append(choices)
        if Choice.DRAFT in choices:
            breaker.asked(drafted - 1, mixed=False)
        breaker.began(comparable=True)
        clock.now += 1
        brought = tokens or [2] * len(rows)
        breaker.ended(
            {
                row: Gain(each, 6, came=True) if choice is Choice.DRAFT else Gain(1)
                for row, choice, each in zip(rows, choices, brought, strict=True)
            }
        )
    return made


def opened(breaker: BatchBreaker, rows: int) -> list[RequestBreaker]:
    return [breaker.open() for _ in range(rows)]


def test_each_size_of_batch_has_its_own_verdict() -> None:
    """One request gains, eight lose; neither disturbs the other."""
    clock = Clock(0.0)
    breaker = BatchBreaker(clock=clock)
    single, several = opened(breaker, 1), opened(breaker, 8)
    one: list[list[Choice]] = []
    eight: list[list[Choice]] = []
    for _ in range(40):
        one += play(breaker, clock, 5, single, drafted=1.2)
        eight += play(breaker, clock, 5, several, drafted=9.0)
    assert [Choice.PAUSE] not in one and one.count([Choice.SAMPLE]) < 12
    assert eight.count([Choice.PAUSE] * 8) > 150


def test_a_row_whose_drafts_are_never_accepted_goes_without_and_the_others_go_on() -> None:
    """A step takes 1.5 s with drafts, 0.2 s of them in the pass; seven rows emit 3 tokens, one 1.

    The wait is there for all, so only what the pass takes longer can be the bad row's own loss.
    """
    alone, beside = [], []
    for bad in (False, True):
        clock = Clock(0.0)
        breaker = BatchBreaker(clock=clock)
        rows = opened(breaker, 8 if bad else 7)
        tokens = [*[3] * 7, *[1] * bad]
        for _ in range(400):
            choices = breaker.admits(rows, len(rows))
            drafts = Choice.DRAFT in choices
            if drafts:
                breaker.asked(0.3, mixed=False)
            breaker.began(comparable=True)
            clock.now += 1.2 if drafts else 1.0
            gains = [
                Gain(each, 6, came=True) if choice is Choice.DRAFT else Gain(1)
                for choice, each in zip(choices, tokens, strict=True)
            ]
            breaker.ended(dict(zip(rows, gains, strict=True)))
            (beside if bad else alone).append(choices)
    drafted = [sum(step[row] is Choice.DRAFT for step in alone) for row in range(7)]
    assert drafted == [sum(step[row] is Choice.DRAFT for step in beside) for row in range(7)]
    assert min(drafted) > 380
    assert 12 <= sum(step[7] is Choice.DRAFT for step in beside) < 60
    assert sum(step[7] is Choice.PAUSE_REQUEST for step in beside) > 330


def test_what_cannot_be_compared_is_not_booked() -> None:
    clock = Clock(0.0)
    breaker = BatchBreaker(BreakerConfig(block=1), clock)
    rows, gain = opened(breaker, 5), Gain(2, 6, came=True)
    for step in range(60):
        breaker.admits(rows[:4], 4)
        breaker.asked(99.0, mixed=step % 3 == 0)
        breaker.began(comparable=step % 3 != 1)
        clock.now += 1
        breaker.ended(dict.fromkeys(rows if step % 3 == 2 else rows[:4], gain))
    breaker.ended(dict.fromkeys(rows[:4], gain))  # no step has begun
    assert not any(choice.paused for choice in breaker.admits(rows[:4], 4))


def test_times_between_steps_do_not_count() -> None:
    """An engine without requests waits; that is no cost of anything."""
    clock = Clock(0.0)
    breaker = BatchBreaker(clock=clock)
    rows, choices = opened(breaker, 1), []
    for _ in range(100):
        choices += play(breaker, clock, 1, rows, drafted=1.2)
        clock.now += 1000
    assert not any(choice.paused for [choice] in choices)


class ByText(BatchBreaker):
    """Pauses by what has been committed: the whole history may decide, the next round may not."""

    def __init__(self, speculation: SpeculationState) -> None:
        super().__init__()
        self.speculation = speculation

    def admits(self, requests: Sequence[RequestBreaker], size: int) -> list[Choice]:
        request = self.speculation.requests["request"]
        last = request.drafting.asking.tokens[-1]  # type: ignore[attr-defined]
        return [(Choice.DRAFT, Choice.PAUSE, Choice.SAMPLE)[last]] * len(requests)


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
        def admits(self, requests: Sequence[RequestBreaker], size: int) -> list[Choice]:
            return [Choice.PAUSE] * len(requests)

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


def test_rows_are_drafted_or_not_one_by_one() -> None:
    """Of a step's rows only those ask that may, and the others' rounds are counted as theirs."""

    class OneByOne(BatchBreaker):
        def admits(self, requests: Sequence[RequestBreaker], size: int) -> list[Choice]:
            super().admits(requests, size)
            assert size == 3
            return [Choice.DRAFT, Choice.PAUSE_REQUEST, Choice.PAUSE][: len(requests)]

    with toy_state() as (speculation, shared):
        shared.tree = WordTree(4)
        speculation.breaker = OneByOne()
        for name in ("good", "bad", "new"):
            active = speculation.begin(name, PROMPT, None, drafted=True)
            step_of(speculation, active, scores_of(first_two, PROMPT, ()), ())
        wanted = [ProposeRequest(name, POLICY) for name in ("good", "bad", "new")]
        assert set(speculation.propose(wanted, 1.0)) == {"good"}
        assert speculation.metrics.labelled("misses") == {
            MissReason.REQUEST_BREAKER_OPEN.value: 1,
            MissReason.BREAKER_OPEN.value: 1,
        }
        speculation.close()


def test_a_request_that_is_taken_up_again_keeps_what_its_drafts_have_brought() -> None:
    with toy_state() as (speculation, shared):
        shared.tree = WordTree(4)
        speculation.breaker = BatchBreaker()
        active = speculation.begin("one", PROMPT, None, drafted=True)
        step_of(speculation, active, scores_of(first_two, PROMPT, ()), ())
        again = speculation.begin("one", PROMPT, None, drafted=True)
        assert again is not active and again.stream == 1
        assert again.breaker is not None and active.breaker is None
        speculation.finish("one")
        assert speculation.breaker.paused_requests == 0
        speculation.close()
