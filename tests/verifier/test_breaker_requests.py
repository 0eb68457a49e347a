"""One request's bad luck is its own, and what is the link's fault holds for all its requests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from draftwire.verifier.breaker import (
    Breaker,
    BreakerConfig,
    BreakerState,
    Choice,
    Gain,
    Paused,
    RequestBreaker,
)
from draftwire.verifier.generate import generate
from draftwire.verifier.miss import MissReason
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.together import Question, run_together
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.paths import drafting
from testing.toys.models import Table, ToyDrafter, ToyTarget

MOST = 6  # tokens of a round whose drafts are all accepted
GOOD, BAD = 3, 1  # tokens of a drafted round; it takes as long as 1.5 of the target alone
SECONDS = 1.5
LOST = 10.0  # seconds of a round whose proposal does not come


@dataclass
class Text:
    """One request, its rounds, and what they came to."""

    request: RequestBreaker
    tokens: int  # of a drafted round
    choices: list[Choice] = field(default_factory=list)
    seconds: float = 0.0
    made: int = 0

    @property
    def drafted(self) -> int:
        return self.choices.count(Choice.DRAFT)

    @property
    def cost(self) -> float:
        """Seconds a token; 1 is the target alone."""
        return self.seconds / self.made

    def round(self, *, lost: bool = False, seconds: float = SECONDS, first: bool = False) -> Choice:
        """Play a round; lost: the proposal does not come."""
        choice = self.request.admits()
        took, gain = 1.0, Gain(1)
        if choice is Choice.DRAFT and lost:
            took, gain = LOST, Gain(1, MOST, came=False)
        elif choice is Choice.DRAFT:
            took, gain = seconds, Gain(self.tokens, MOST, came=True)
        self.request.finished(choice, took - first, gain, first=first)
        self.choices.append(choice)
        self.seconds += took
        self.made += gain.tokens
        return choice


def begun(breaker: Breaker, kinds: Sequence[int]) -> list[Text]:
    return [Text(breaker.open(), tokens) for tokens in kinds]


def take_turns(
    texts: Sequence[Text], rounds: int, lost: Callable[[int], bool] | None = None
) -> None:
    """A round of each in turn; lost: by the number of the turn, whether no proposal comes."""
    for number in range(rounds):
        for each in texts:
            each.round(lost=lost is not None and lost(number))


@pytest.mark.parametrize("rounds", [100, 1000, 5000])
def test_a_request_whose_drafts_are_never_accepted_takes_nothing_from_the_others(
    rounds: int,
) -> None:
    good, mixed = begun(Breaker(), [GOOD] * 7), begun(Breaker(), [*[GOOD] * 7, BAD])
    take_turns(good, rounds)
    take_turns(mixed, rounds)
    assert [each.choices for each in mixed[:7]] == [each.choices for each in good]
    assert all(each.drafted >= 0.97 * rounds for each in good)
    assert not any(choice.paused for each in good for choice in each.choices)
    bad = mixed[7]
    assert 12 <= bad.drafted < 120
    assert bad.cost <= (1.15 if rounds == 100 else 1.03)
    assert bad.choices.count(Choice.PAUSE) == 0


@pytest.mark.parametrize("place", range(8))
def test_wherever_the_bad_one_stands_the_others_are_drafted(place: int) -> None:
    kinds = [GOOD] * 7
    kinds.insert(place, BAD)
    texts = begun(Breaker(), kinds)
    take_turns(texts, 500)
    assert all(each.drafted >= 490 for each in texts if each.tokens == GOOD)
    assert texts[place].drafted < 40


def test_one_good_request_among_bad_ones_goes_on() -> None:
    texts = begun(Breaker(), [*[BAD] * 7, GOOD])
    take_turns(texts, 5000)
    assert texts[7].drafted > 4800
    assert texts[7].cost < 0.52
    assert all(each.drafted < 150 and each.cost <= 1.03 for each in texts[:7])


def test_a_dead_link_pauses_all_at_once_and_the_probe_of_one_wakes_all() -> None:
    breaker = Breaker()
    texts = begun(breaker, [GOOD] * 8)
    take_turns(texts, 50)
    assert all(each.choices[-1] is Choice.DRAFT for each in texts)
    for each in texts[:3]:  # three proposals are missed, whoever's
        assert each.round(lost=True) is Choice.DRAFT
    assert breaker.state is BreakerState.OPEN
    take_turns(texts, 4)  # 32 rounds of all together
    assert all(each.choices[-4:] == [Choice.PAUSE] * 4 for each in texts)
    assert texts[0].round() is Choice.DRAFT  # it is there again
    for each in texts[:4]:
        each.round()
    assert breaker.state is BreakerState.CLOSED
    take_turns(texts, 20)
    assert all(each.choices[-20:].count(Choice.DRAFT) >= 19 for each in texts)
    assert breaker.pauses_by_scope == {"link": 1, "new_requests": 0, "request": 0}


def test_a_link_that_stays_dead_costs_all_together_what_it_costs_one() -> None:
    asked = []
    for count in (1, 8):
        breaker = Breaker()
        texts = begun(breaker, [GOOD] * count)
        take_turns(texts, 50)
        take_turns(texts, 20_000 // count, lost=lambda turn: True)
        asked.append(sum(each.choices[50:].count(Choice.DRAFT) for each in texts))
        assert sum(each.seconds for each in texts) <= 1.03 * sum(each.made for each in texts)
        assert breaker.pauses_by_scope["request"] == 0  # none of them is to blame
    assert asked[0] > 10
    assert asked[1] <= asked[0] + 3


def test_while_a_link_is_probed_one_round_asks_and_nobody_waits_for_a_text_that_rests() -> None:
    breaker = Breaker()
    texts = begun(breaker, [GOOD] * 4)
    take_turns(texts, 20)
    for each in texts[:3]:
        each.round(lost=True)
    take_turns(texts, 8)
    first, second, third, fourth = (each.request for each in texts)
    assert first.admits() is Choice.DRAFT
    assert second.admits() is third.admits() is Choice.PAUSE
    first.close()  # in the middle of its round
    assert third.admits() is Choice.DRAFT
    assert fourth.admits() is Choice.PAUSE
    third.finished(Choice.DRAFT, SECONDS, Gain(GOOD, MOST, came=True), first=False)
    assert fourth.admits() is Choice.DRAFT  # though the third may rest from here on


@pytest.mark.parametrize("seconds", [3.5, 5.0, 30.0])
@pytest.mark.parametrize("rounds", [2, 3, 10, 100])
def test_short_requests_one_after_another_are_never_dear(seconds: float, rounds: int) -> None:
    """Each is over before, or soon after, it has found out; the next ones learn of it."""
    breaker, spent, made, drafted = Breaker(), 0.0, 0, 0
    for _ in range(60_000 // rounds):
        text = Text(breaker.open(), GOOD)
        for number in range(rounds):
            text.round(seconds=seconds, first=number == 0)
        text.request.close()
        spent, made, drafted = spent + text.seconds, made + text.made, drafted + text.drafted
    assert drafted > 20
    assert spent <= 1.03 * made


@pytest.mark.parametrize("rounds", [4, 40])
def test_short_requests_of_which_one_in_eight_is_bad_are_drafted(rounds: int) -> None:
    breaker, spent, made = Breaker(), 0.0, 0
    for number in range(400):
        text = Text(breaker.open(), BAD if number % 8 == 3 else GOOD)
        for turn in range(rounds):
            text.round(first=turn == 0)
        text.request.close()
        spent, made = spent + text.seconds, made + text.made
        if text.tokens == GOOD and number > 3:
            assert text.drafted >= rounds - 1
    assert spent < 0.6 * made
    assert breaker.pauses_by_scope["new_requests"] == breaker.pauses_by_scope["link"] == 0


def test_a_new_request_begins_by_what_the_last_ones_have_come_to() -> None:
    """One bad request says nothing of the next; when several have lost, a new one begins paused."""
    breaker = Breaker()
    take_turns(begun(breaker, [GOOD]), 20)
    begins = []
    for _ in range(5):
        text = Text(breaker.open(), BAD)
        take_turns([text], 20)
        begins.append(text.choices[0])
        text.request.close()
    assert begins[:2] == [Choice.DRAFT] * 2
    assert begins[4] is Choice.PAUSE
    assert breaker.pauses_new_requests
    while breaker.pauses_new_requests:  # its pause is one of rounds of new requests
        text = Text(breaker.open(), GOOD)
        take_turns([text], 40)
    assert text.choices[-1] is Choice.DRAFT
    good = Text(breaker.open(), GOOD)
    assert good.round() is Choice.DRAFT


def test_a_request_that_is_known_to_gain_does_not_pause_with_new_ones() -> None:
    breaker = Breaker()
    good = Text(breaker.open(), GOOD)
    take_turns([good], 40)
    for _ in range(12):
        bad = Text(breaker.open(), BAD)
        take_turns([bad, good], 20)
        bad.request.close()
    assert bad.choices[0] is Choice.PAUSE
    assert not any(choice.paused for choice in good.choices)
    assert good.drafted > 270


def test_a_long_prompt_is_paid_for_by_the_request_that_has_it() -> None:
    """The drafter reads it in the first round, for as long as 500 tokens of the target take."""
    breaker = Breaker()
    texts = begun(breaker, [GOOD] * 3)
    take_turns(texts, 30)
    for _ in range(3):
        long = Text(breaker.open(), GOOD)
        long.round(seconds=500.0, first=True)
        take_turns([*texts, long], 10)
        assert long.request.circuit.unpaid > 400
    assert not any(choice.paused for each in texts for choice in each.choices)


@pytest.mark.parametrize("seed", range(6))
def test_every_loss_is_booked_so_that_pauses_pay_for_it(seed: int) -> None:
    """Texts of all kinds come and go over a link with a bad day; after every round, all that was
    lost is in some debt, or paid by the rounds of pauses at the rate of the budget.
    """
    chance, config = random.Random(seed), BreakerConfig()
    breaker = Breaker(config)
    texts: list[Text] = []
    lost = paid = 0.0
    for turn in range(3000):
        if len(texts) < 4 and chance.random() < 0.2:
            texts.append(Text(breaker.open(), chance.randint(1, 5)))
        for each in list(texts):
            slow = chance.choice([1.0, 1.0, 1.0, 8.0]) if 500 < turn < 900 else 1.0
            seconds = SECONDS * slow * chance.uniform(0.7, 1.4)
            before = each.seconds, each.made
            first = not each.choices
            choice = each.round(lost=chance.random() < 0.02, seconds=seconds, first=first)
            if choice is Choice.DRAFT:
                spent, made = each.seconds - before[0], each.made - before[1]
                lost += spent - made * (1 + config.margin)
            paid += config.budget * choice.paused
            if chance.random() < 0.02:
                each.request.close()
                texts.remove(each)
            assert lost - paid <= breaker.unpaid + 1e-6
    assert paid > 0


class Timed(Breaker):
    """Rounds take 1.5 s where any request of theirs is drafted, 0.3 s of it in the wait, or 1 s."""

    def finished(
        self,
        requests: Sequence[RequestBreaker],
        choices: Sequence[Choice],
        gains: Sequence[Gain],
        seconds: float,
        *,
        waited: float = 0.0,
        first: bool = False,
    ) -> list[Paused]:
        drafted = Choice.DRAFT in choices
        waited = 0.3 if waited else 0.0
        seconds = SECONDS - first if drafted else 1.0
        return super().finished(requests, choices, gains, seconds, waited=waited, first=first)


def after_prompt(good: tuple[int, ...], bad: tuple[int, ...]) -> Table:
    """Return one row for texts whose prompt begins with 0, another for those with 1."""
    return lambda context: bad if context[0] else good


@pytest.mark.parametrize("together", [False, True])
def test_of_texts_by_one_drafter_only_the_one_pauses_whose_drafts_are_refused(
    together: bool,
) -> None:
    target = ToyTarget(after_prompt((1, 0), (0, 1)), 2)  # the drafter always says 0
    drafter = ToyDrafter(after_prompt((1, 0), (1, 0)), 2)
    with drafting("colocated", drafter, target) as client:
        client.breaker = breaker = Timed()
        policy = ProposalPolicy(Layout.DENSE, 2, 1.0)
        texts = [
            generate(target, client, (bad,), Sampling(max_tokens=300 - 150 * bad), policy)
            for bad in (0, 0, 1)
        ]
        if together:
            asked = []

            def score_all(questions: Sequence[Question[Any]]) -> Any:
                asked.append([len(drafts) for _, _, drafts in questions])
                return np.concatenate([target.score(*each) for each in questions])

            run_together(texts, score_all, client)
            assert [2, 2, 0] in asked
        else:
            running = list(texts)
            while running:  # a token of each in turn
                running = [each for each in running if next(each, None) is not None]
        good, also_good, bad = (each.report for each in texts)
        assert breaker.paused_requests == 0  # they have ended
    for report in (good, also_good):
        assert report.tokens == 300
        assert report.drafted_rounds >= 97 and not report.misses[MissReason.REQUEST_BREAKER_OPEN]
        assert report.accepted == 2 * report.drafted_rounds
    assert bad.accepted == 0 and 12 <= bad.drafted_rounds < 40
    assert bad.misses[MissReason.REQUEST_BREAKER_OPEN] > 90
    assert any("costs this request more than it brings" in note for note in bad.notes)
    assert not good.notes
    assert breaker.pauses_by_scope["link"] == 0


def test_rounds_that_ask_for_nothing_neither_probe_a_link_nor_wake_it() -> None:
    """A request whose context is full is admitted like others, and says nothing of the link."""
    breaker = Breaker()
    texts = begun(breaker, [GOOD] * 2)
    take_turns(texts, 20)
    for _ in range(3):
        texts[0].round(lost=True)
    full = breaker.open()
    asked = 0
    for _ in range(100):
        choice = full.admits()
        asked += choice is Choice.DRAFT
        full.finished(choice, 1.0, Gain(1, MOST), first=False)
    assert asked > 50
    assert breaker.state is BreakerState.HALF_OPEN
    assert texts[0].round() is Choice.DRAFT


def test_what_the_target_alone_takes_is_not_learned_from_a_paused_request_above_others() -> None:
    """The bad one has a long text, whose rounds take three times as long without drafts."""
    breaker = Breaker()
    *several, bad = begun(breaker, [GOOD, GOOD, GOOD, BAD])
    for _ in range(600):
        for each in several:
            each.round()
        choice = bad.request.admits()
        gain = Gain(1, MOST, came=True) if choice is Choice.DRAFT else Gain(1)
        bad.request.finished(choice, 4.5 if choice is Choice.DRAFT else 3.0, gain, first=False)
    assert bad.request.circuit.pauses > 0
    assert breaker.alone == 1.0
    assert not any(choice.paused for each in several for choice in each.choices)


def test_a_request_may_be_let_go_in_the_middle_of_a_round_of_another() -> None:
    """Garbage is collected anywhere, also in a call that holds the lock."""
    breaker = Breaker()
    text, dropped = begun(breaker, [GOOD, BAD])
    take_turns([text, dropped], 20)
    assert dropped.request.circuit.unpaid > 0

    class Collected(list[Gain]):
        def __iter__(self) -> Iterator[Gain]:
            dropped.request.close()
            return super().__iter__()

    owed = breaker.unpaid
    gains = Collected([Gain(GOOD, MOST, came=True)])
    thread = threading.Thread(
        target=breaker.finished,
        args=([text.request], [text.request.admits()], gains, SECONDS),
        daemon=True,
    )
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert breaker.unpaid == pytest.approx(owed)  # the link had no debt for the gain to pay
    assert breaker.paused_requests == 0
