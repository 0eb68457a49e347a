"""The speculation of the vLLM engine, without vLLM: its law over all words, whatever is scheduled.

p is uniform over one id or two after every context, q in halves or quarters; two or four words then
stand for all words, and the law of the text is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.vllm.speculation import (
    ActiveRequest,
    ProposeRequest,
    SpeculationState,
    VerifyRequest,
)
from draftwire.exact.words import Domain
from draftwire.kernels.protocol import Round
from draftwire.transport.channel import Channel
from draftwire.verifier.judge import judge
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.miss import MissReason
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.toys.enumeration import WordTree, law_of
from testing.toys.models import ToyContext, ToyDrafter, ToyTarget, constant

V = 3
PROMPT = (0,)
POLICY = ProposalPolicy(Layout.SPARSE, 2, 1.0, support=V)
OWN_CHOICE = {MissReason.BREAKER_OPEN.value, MissReason.BASELINE.value}
Law = dict[tuple[int, ...], Fraction]
Allowed = Callable[[tuple[int, ...]], tuple[int, ...]]
Schedule = Callable[[tuple[int, ...], tuple[int, ...], int], int]


def two_of_three(context: tuple[int, ...]) -> tuple[int, ...]:
    """The ids of p, equally likely: another pair after every token, sometimes one alone."""
    return ((0, 1), (1, 2), (2,))[context[-1]]


def first_two(context: tuple[int, ...]) -> tuple[int, ...]:
    return (0, 1)


def halves(context: tuple[int, ...]) -> tuple[float, ...]:
    """Mass where p has none, and none where p has some."""
    return ((1, 0, 1), (1, 1, 0), (0, 1, 1))[context[-1]]


def quarters(context: tuple[int, ...]) -> tuple[float, ...]:
    return (2, 1, 1)


def scores_of(allowed: Allowed, context: tuple[int, ...], drafts: Sequence[int]) -> np.ndarray:
    rows = np.full((len(drafts) + 1, V), -np.inf, np.float32)
    for row in range(len(drafts) + 1):
        rows[row, list(allowed((*context, *drafts[:row])))] = 0
    return rows


def everything(context: tuple[int, ...], drafts: tuple[int, ...], step: int) -> int:
    return len(drafts)


def one_short(context: tuple[int, ...], drafts: tuple[int, ...], step: int) -> int:
    return max(len(drafts) - 1, 0)


def nothing_on_odd_steps(context: tuple[int, ...], drafts: tuple[int, ...], step: int) -> int:
    return 0 if step % 2 else len(drafts)


def only_legal(allowed: Allowed) -> Schedule:
    """What vLLM does beside a grammar: schedule the drafts up to the first forbidden one."""

    def schedule(context: tuple[int, ...], drafts: tuple[int, ...], step: int) -> int:
        for place, draft in enumerate(drafts):
            if draft not in allowed((*context, *drafts[:place])):
                return place
        return len(drafts)

    return schedule


class Shared:
    tree: WordTree

    def __call__(self, key: object) -> WordTree:
        return self.tree


@contextmanager
def toy_state(
    table: Callable[..., Sequence[float]] = halves,
) -> Iterator[tuple[SpeculationState, Shared]]:
    engine, shared = ToyDrafter(table, V), Shared()
    program = DrafterProgram(engine, DrafterConfig(), source=shared)
    with LocalDrafter(program, ToyTarget(constant(1, 1, 1), V), audit=False) as client:
        yield SpeculationState(client, words=shared), shared
    assert_refused_nothing(program, engine)


@contextmanager
def keyed_state(table: Callable[..., Sequence[float]]) -> Iterator[SpeculationState]:
    """With the words of real keys."""
    engine = ToyDrafter(table, V)
    program = DrafterProgram(engine, DrafterConfig())
    with LocalDrafter(program, ToyTarget(constant(1, 1, 1), V)) as client:
        yield SpeculationState(client)
    assert_refused_nothing(program, engine)


def assert_refused_nothing(program: DrafterProgram[ToyContext], engine: ToyDrafter) -> None:
    assert not engine.contexts
    for errors in (
        program.counters.refused,
        program.counters.local_errors,
        program.counters.remote_errors,
    ):
        assert not any(errors.values())


def step_of(
    speculation: SpeculationState,
    active: ActiveRequest,
    scores: np.ndarray,
    drafts: Sequence[int],
    *,
    greedy: bool = False,
) -> tuple[int, ...]:
    """One step of an engine that decodes one request."""
    return speculation.verify_step(scores, [VerifyRequest(active, 0, drafts, greedy)])[0]


def text_of(
    speculation: SpeculationState,
    allowed: Allowed,
    schedule: Schedule,
    length: int,
    *,
    greedy: bool = False,
) -> tuple[int, ...]:
    """Decode as the engine does: judge a step, propose for the next, schedule some of it."""
    active = speculation.begin("request", PROMPT, 0, drafted=True)
    text: tuple[int, ...] = PROMPT
    drafts: tuple[int, ...] = ()
    for step in range(length):
        scores = scores_of(allowed, text, drafts)
        text += step_of(speculation, active, scores, drafts, greedy=greedy)
        if len(text) >= length + len(PROMPT):
            break
        proposed = speculation.propose([ProposeRequest("request", POLICY)], 1.0).get("request", ())
        drafts = proposed[: schedule(text, proposed, step)]
    assert active.committed == len(text)
    speculation.finish("request")
    assert set(speculation.metrics.labelled("misses")) <= OWN_CHOICE  # no proposal is lost
    return text[len(PROMPT) :][:length]


def law_through(allowed: Allowed, schedule: Schedule, length: int, grid: int = 2) -> Law:
    with toy_state(halves if grid == 2 else quarters) as (speculation, shared):

        def run(tree: WordTree) -> tuple[int, ...]:
            shared.tree = tree
            return text_of(speculation, allowed, schedule, length)

        return law_of(run, grid)


def targets_law(allowed: Allowed, length: int) -> Law:
    law: Law = {}
    for text in product(range(V), repeat=length):
        mass = Fraction(1)
        for place in range(length):
            ids = allowed((*PROMPT, *text[:place]))
            mass *= Fraction(int(text[place] in ids), len(ids))
        if mass:
            law[text] = mass
    return law


@pytest.mark.parametrize("allowed", [two_of_three, first_two])
@pytest.mark.parametrize("schedule", [everything, one_short, nothing_on_odd_steps, only_legal])
def test_the_law_is_the_targets_whatever_is_scheduled(allowed: Allowed, schedule: object) -> None:
    chosen = only_legal(allowed) if schedule is only_legal else schedule
    assert law_through(allowed, chosen, 3) == targets_law(allowed, 3)  # type: ignore[arg-type]


def test_g21_a_forbidden_draft_that_the_scheduler_cuts_off_is_an_ordinary_rejection() -> None:
    """p = (1/2, 1/2, 0), q = (1/2, 1/4, 1/4): not (5/8, 3/8, 0), the law of a bonus at the cut."""
    law = law_through(first_two, only_legal(first_two), 2, grid=4)
    second = [sum(mass for text, mass in law.items() if text[1] == token) for token in range(V)]
    assert second == [Fraction(1, 2), Fraction(1, 2), 0]


def test_a_bonus_at_the_cut_would_not_have_the_law() -> None:
    """The negative control: the row at the cut taken for that of a bonus, as vLLM does."""
    law: dict[int, Fraction] = {}
    with toy_state(quarters) as (speculation, shared):

        def run(tree: WordTree) -> int:
            shared.tree = tree
            active = speculation.begin("request", PROMPT, 0, drafted=True)
            step_of(speculation, active, scores_of(only_zero, PROMPT, ()), (), greedy=False)
            speculation.propose([ProposeRequest("request", POLICY)], 1.0)
            proposal = active.proposal
            assert proposal is not None
            legal = only_legal(first_two)((*PROMPT, 0), proposal.tokens, 0)
            cut = Round(
                tokens=proposal.tokens[:legal],
                rows=proposal.rows[:legal],
                first_row=0,
                row_count=legal + 1,
                words=tree,
                generation=1,
                round=active.drafting.round,
                first_position=active.committed,
            )
            scores = scores_of(first_two, PROMPT, cut.tokens)
            token = judge(speculation.kernels, scores, [cut])[0].tokens[0]
            speculation.finish("request")
            return token

        law = law_of(run, 4)
    assert law == {0: Fraction(5, 8), 1: Fraction(3, 8)}


def only_zero(context: tuple[int, ...]) -> tuple[int, ...]:
    return (0,)


@pytest.mark.parametrize("allowed", [two_of_three, first_two])
@pytest.mark.parametrize("table", [halves, quarters])
@pytest.mark.parametrize("schedule", [everything, one_short, nothing_on_odd_steps, only_legal])
def test_no_proposal_is_lost_whatever_is_scheduled(
    allowed: Allowed, table: Callable[..., Sequence[float]], schedule: object
) -> None:
    """A draft that is cut off and accepted ends its round: the next proposal goes on from it."""
    chosen = only_legal(allowed) if schedule is only_legal else schedule
    with keyed_state(table) as speculation:
        text_of(speculation, allowed, chosen, 60)  # type: ignore[arg-type]
        assert speculation.metrics["rounds"] == speculation.metrics["drafts"] + 1


def test_a_draft_that_is_cut_off_and_accepted_is_no_correction() -> None:
    """p = q, one draft cut a step: twelve proposals of twelve arrive, and all drafts stand."""
    with keyed_state(lambda context: (1, 1, 0)) as speculation:
        text_of(speculation, first_two, one_short, 25)
        assert speculation.metrics["rounds"] == 13
        assert speculation.metrics["drafts"] == 12
        assert speculation.metrics["accepted_tokens"] == 24


def test_greedy_takes_the_largest_whatever_was_drafted() -> None:
    for schedule in (everything, one_short, only_legal(two_of_three)):
        with toy_state() as (speculation, shared):
            shared.tree = WordTree(4)
            text = text_of(speculation, two_of_three, schedule, 6, greedy=True)
        expected: tuple[int, ...] = PROMPT
        for _ in range(6):
            expected += (min(two_of_three(expected)),)
        assert text == expected[1:]


def test_every_draft_is_in_one_count() -> None:
    with toy_state() as (speculation, shared):
        shared.tree = WordTree(4)
        for schedule in (everything, one_short, nothing_on_odd_steps, only_legal(two_of_three)):
            text_of(speculation, two_of_three, schedule, 8)
        metrics = speculation.metrics
        drafted, verified = metrics["proposed_tokens"], metrics["draft_tokens"]
        assert drafted == verified + metrics["truncated_tokens"] > 0
        assert metrics["accepted_tokens"] == sum(
            metrics.labelled("accepted_tokens_per_pos").values()
        )
        assert metrics["sessions"] == 0


def test_a_request_that_the_engine_takes_back_begins_anew_with_words_of_its_own() -> None:
    with toy_state() as (speculation, shared):
        shared.tree = WordTree(4)
        first = speculation.begin("request", (0, 1, 2), 7, drafted=True)
        assert speculation.begin("request", (0, 1, 2), 7, drafted=True) is first
        again = speculation.begin("request", (0, 1), 7, drafted=True)
        assert again is not first
        assert (first.stream, again.stream) == (0, 1)


def refused_at(place: int, *drafts: int) -> np.ndarray:
    scores = scores_of(first_two, PROMPT, drafts)
    scores[place] = (0.0, np.nan, -1.0)
    return scores


@pytest.mark.parametrize("greedy", [False, True])
def test_a_row_that_is_no_distribution_stands_alone_and_is_counted(greedy: bool) -> None:
    """E49: the engine has no way to fail one request, so its largest score stands."""
    with toy_state() as (speculation, shared):
        shared.tree = WordTree(4)
        active = speculation.begin("request", PROMPT, 0, drafted=True)
        assert step_of(speculation, active, refused_at(0), (), greedy=greedy) == (0,)
        assert speculation.metrics["refused_rows"] == 1
        speculation.finish("request")


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("place", "scheduled"), [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)])
def test_drafts_accepted_before_a_refused_row_stand(
    place: int, scheduled: int, greedy: bool
) -> None:
    """All drafts are 0 and accepted; the fallback of a refused first row is that same token."""
    with toy_state(lambda context: (1, 0, 0)) as (speculation, shared):
        shared.tree = WordTree(4)
        active = speculation.begin("request", PROMPT, 0, drafted=True)
        step_of(speculation, active, scores_of(only_zero, PROMPT, ()), (), greedy=greedy)
        drafts = speculation.propose([ProposeRequest("request", POLICY)], 1.0)["request"]
        assert drafts == (0, 0)
        scores = refused_at(place, *drafts[:scheduled])
        tokens = step_of(speculation, active, scores, drafts[:scheduled], greedy=greedy)
        assert tokens == (0,) * max(place, 1)
        assert speculation.metrics["refused_rows"] == 1
        assert speculation.metrics["accepted_tokens"] == place
        speculation.propose([ProposeRequest("request", POLICY)], 1.0)
        assert not speculation.metrics.labelled("misses")
        speculation.finish("request")


def test_the_law_holds_up_to_a_refused_row() -> None:
    """The first row fine, the third none: its tokens have the first row's law."""
    with toy_state(quarters) as (speculation, shared):

        def run(tree: WordTree) -> int:
            shared.tree = tree
            active = speculation.begin("request", PROMPT, 0, drafted=True)
            step_of(speculation, active, scores_of(only_zero, PROMPT, ()), (), greedy=False)
            drafts = speculation.propose([ProposeRequest("request", POLICY)], 1.0)["request"]
            token = step_of(speculation, active, refused_at(2, *drafts), drafts, greedy=False)[0]
            speculation.finish("request")
            return token

        assert law_of(run, 4) == {0: Fraction(1, 2), 1: Fraction(1, 2)}


def test_prompts_with_ids_that_are_not_shared_go_undrafted() -> None:
    with toy_state() as (speculation, shared):
        shared.tree = WordTree(4)
        for name, prompt, drafted in (("wide", (0, V), True), ("pixels", (0, 1), False)):
            speculation.begin(name, prompt, 0, drafted=drafted)
            assert speculation.propose([ProposeRequest(name, POLICY)], 1.0) == {}


def test_all_rows_are_asked_for_in_one_go() -> None:
    batches: list[int] = []

    class Counting:
        def __init__(self, inner: Channel) -> None:
            self.inner = inner

        def send(self, parts: list[bytes], deadline: float) -> None:
            batches.append(len(parts))
            self.inner.send(parts, deadline)

        def receive_into(self, buffer: memoryview, deadline: float) -> int:
            return self.inner.receive_into(buffer, deadline)

        def close(self) -> None:
            self.inner.close()

    engine = ToyDrafter(halves, V)
    program = DrafterProgram(engine, DrafterConfig())
    target = ToyTarget(constant(1, 1, 1), V)
    with LocalDrafter(program, target, through=Counting) as client:
        speculation = SpeculationState(client)
        for name in "abcdef":
            active = speculation.begin(name, PROMPT, 1, drafted=True)
            step_of(speculation, active, scores_of(first_two, PROMPT, ()), (), greedy=False)
        client.connect()
        batches.clear()
        drafts = speculation.propose([ProposeRequest(name, POLICY) for name in "abcdef"], 1.0)
        assert len(batches) == 1  # all STEPs in one write
        assert set(drafts) == set("abcd")  # HELLO agreed to four sessions
        assert speculation.metrics.labelled("misses") == {MissReason.NO_SLOT.value: 2}
        assert engine.batches[0] == 4
        speculation.close()


def test_words_come_from_the_domain_that_owns_the_draw() -> None:
    seen: set[Domain] = set()
    with toy_state() as (speculation, shared):

        def run(tree: WordTree) -> None:
            shared.tree = tree
            text_of(speculation, two_of_three, everything, 3)
            seen.update(tree.domains)

        law_of(run, 2)
    assert seen == set(Domain)


@pytest.mark.parametrize("greedy", [False, True])
def test_a_step_of_many_requests_is_one_call_with_the_tokens_of_each_alone(greedy: bool) -> None:
    """Rows of prompts that commit nothing lie between theirs."""
    names = [f"r{index}" for index in range(4)]

    def texts(*, together: bool) -> list[tuple[int, ...]]:
        with keyed_state(quarters) as speculation:
            got = dict.fromkeys(names, PROMPT)
            drafts: dict[str, tuple[int, ...]] = {}
            for name in names:
                speculation.begin(name, PROMPT, int(name[1:]), drafted=True)
            for _ in range(6):
                requests, rows = [], [np.full((1, V), np.nan, np.float32)]
                for name in names:
                    active, scheduled = speculation.requests[name], drafts.get(name, ())
                    first = sum(map(len, rows))
                    requests.append(VerifyRequest(active, first, scheduled, greedy))
                    rows += [scores_of(two_of_three, got[name], scheduled), rows[0]]
                scores = np.concatenate(rows)
                steps = [requests] if together else [[each] for each in requests]
                tokens = [each for step in steps for each in speculation.verify_step(scores, step)]
                got = {name: got[name] + each for name, each in zip(names, tokens, strict=True)}
                wanted = [ProposeRequest(name, POLICY) for name in names]
                drafts = speculation.propose(wanted, 1.0)
                assert len(drafts) == len(names)
            speculation.close()
        return list(got.values())

    assert texts(together=True) == texts(together=False)
