"""The round loop over every path: the same text, the same ends, everything accounted for."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.drafter.program import DrafterConfig
from draftwire.errors import ArithmeticRefusalError, ConfigurationError, RefusalCode
from draftwire.verifier.emission import Emission, Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.miss import MissReason
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.stop import Finish
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, LayoutSet, WireVersion
from testing.harness.paths import PATHS, drafting
from testing.toys.models import ToyDrafter, ToyTarget, constant, mixed

V = 11
PROMPT = (1, 2, 3)
DENSE = ProposalPolicy(Layout.DENSE, 4, 1.0)
SPARSE = ProposalPolicy(Layout.SPARSE, 4, 0.8, support=5)
V1 = ProposalPolicy(Layout.IDS_ONLY, 4, 0.0)


def near(salt: int = 1) -> ToyDrafter:
    """Return a drafter whose table resembles the target's, so that drafts are accepted."""
    return ToyDrafter(mixed(V, salt, sharpness=1.2), V)


def text(
    path: str,
    policy: ProposalPolicy,
    sampling: Sampling,
    *,
    target: ToyTarget | None = None,
    engine: ToyDrafter | None = None,
    prompt: Sequence[int] = PROMPT,
    version: WireVersion = WireVersion.V2,
) -> tuple[list[Emission], Report]:
    target = target or ToyTarget(mixed(V, 1), V)
    engine = engine or near()
    with drafting(path, engine, target, version=version) as drafter:
        generation = generate(target, drafter, prompt, sampling, policy)
        return list(generation), generation.report


@pytest.mark.parametrize("policy", [DENSE, SPARSE])
def test_the_same_seeded_text_on_every_path(policy: ProposalPolicy) -> None:
    sampling = Sampling(seed=42, max_tokens=120)
    texts = [text(path, policy, sampling)[0] for path in PATHS]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 120
    kinds = Counter(emission.kind for emission in texts[0])
    assert kinds[Kind.ACCEPTED] > 20
    assert kinds[Kind.CORRECTED] > 5


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("policy", [DENSE, SPARSE, ProposalPolicy(Layout.DENSE, 3, 0.0)])
def test_greedy_text_is_the_targets_own(path: str, policy: ProposalPolicy) -> None:
    sampling = Sampling(temperature=0, max_tokens=60)
    target = ToyTarget(mixed(V, 1), V)
    alone = [e.token for e in generate(target, None, PROMPT, sampling)]
    drafted = [e.token for e in text(path, policy, sampling, target=target)[0]]
    assert drafted == alone


@pytest.mark.parametrize("path", PATHS)
def test_v1_greedy_text_is_the_targets_own(path: str) -> None:
    sampling = Sampling(temperature=0, max_tokens=60)
    target, engine = ToyTarget(mixed(V, 1), V), near()
    alone = [e.token for e in generate(target, None, PROMPT, sampling)]
    config = DrafterConfig(version=WireVersion.V1, layouts=LayoutSet.IDS_ONLY)
    with drafting(path, engine, target, version=WireVersion.V1, config=config) as drafter:
        generation = generate(target, drafter, PROMPT, sampling, V1)
        assert [e.token for e in generation] == alone
        assert generation.report.accepted > 0


def test_v1_is_for_temperature_zero_alone() -> None:
    target, engine = ToyTarget(mixed(V, 1), V), near()
    with drafting("colocated", engine, target) as drafter:
        with pytest.raises(ConfigurationError, match="temperature 0"):
            generate(target, drafter, PROMPT, Sampling(), V1)
        with pytest.raises(ConfigurationError, match="temperature 0"):
            warm = ProposalPolicy(Layout.IDS_ONLY, 4, 0.5)
            generate(target, drafter, PROMPT, Sampling(temperature=0), warm)


def test_r13_seeded_requests_among_others_equal_their_solo_runs() -> None:
    """Seeded 1, unseeded, seeded 2, interleaved round by round on one connection."""
    target, engine = ToyTarget(mixed(V, 1), V), near()
    seeds = (1, None, 2)
    solo = {
        seed: [e.token for e in text("tcp", DENSE, Sampling(seed=seed, max_tokens=40))[0]]
        for seed in (1, 2)
    }
    with drafting("tcp", engine, target) as drafter:
        runs = [
            generate(target, drafter, PROMPT, Sampling(seed=seed, max_tokens=40), DENSE)
            for seed in seeds
        ]
        texts: list[list[int]] = [[] for _ in runs]
        for _ in range(40):
            for index, run in enumerate(runs):
                texts[index].append(next(run).token)
        for run in runs:
            assert next(run, None) is None
    assert texts[0] == solo[1]
    assert texts[2] == solo[2]


def test_r14_unseeded_requests_are_independent() -> None:
    """20 unseeded texts of 30 tokens over 11 ids with no near-certain token: all different."""
    target, engine = ToyTarget(constant(*[1.0] * V), V), near()
    texts = set()
    with drafting("colocated", engine, target) as drafter:
        for _ in range(20):
            run = generate(target, drafter, PROMPT, Sampling(max_tokens=30), DENSE)
            texts.add(tuple(e.token for e in run))
    assert len(texts) == 20


def test_the_law_smoke_by_chi_square() -> None:
    """alpha = 0.001, n = 1500 seeded texts of 2 tokens, 9 cells: smoke, beside the enumeration."""
    target = ToyTarget(lambda context: (1, 6, 3) if context[-1] else (5, 2, 3), 3)
    engine = ToyDrafter(constant(6, 3, 1), 3)
    counts: Counter[tuple[int, ...]] = Counter()
    n = 1500
    policy = ProposalPolicy(Layout.DENSE, 2, 1.0)
    with drafting("colocated", engine, target) as drafter:
        for seed in range(n):
            run = generate(target, drafter, (1,), Sampling(seed=seed, max_tokens=2), policy)
            counts[tuple(e.token for e in run)] += 1
    statistic = 0.0
    for first in range(3):
        for second in range(3):
            p = target.table((1,))[first] / 10 * target.table((1, first))[second] / 10
            statistic += (counts[first, second] - n * p) ** 2 / (n * p)
    assert statistic < 26.12  # the 0.999 quantile of chi-square with 8 degrees of freedom


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("at", range(5))
def test_d9_rejection_forced_at_every_position(path: str, at: int) -> None:
    """Drafts 0..at-1 are accepted, draft ``at`` never: that prefix plus one correction, each round.

    The drafter finds the prefix digest of every STEP, so both hold the same committed prefix.
    """
    base = len(PROMPT)

    def certain(token: int) -> list[float]:
        return [1.0 if v == token else 0.0 for v in range(V)]

    def target_table(context: tuple[int, ...]) -> list[float]:
        return certain((len(context) - base) % V)

    def draft_table(context: tuple[int, ...]) -> list[float]:
        place = len(context) - base
        wrong = place % (at + 1) == at
        return certain((place + wrong) % V)

    target, engine = ToyTarget(target_table, V), ToyDrafter(draft_table, V)
    policy = ProposalPolicy(Layout.DENSE, 5, 1.0)
    rounds = 4
    sampling = Sampling(seed=1, max_tokens=(at + 1) * rounds + 6)
    with drafting(path, engine, target) as drafter:
        run = generate(target, drafter, PROMPT, sampling, policy)
        emissions = [next(run) for _ in range((at + 1) * rounds)]
        kinds = [emission.kind for emission in emissions]
        assert kinds == ([Kind.ACCEPTED] * at + [Kind.CORRECTED]) * rounds
        assert [e.token for e in emissions] == [i % V for i in range(len(emissions))]
        assert run.report.accepted == at * rounds
        assert run.report.rejected == rounds
        assert not run.report.misses
        context = engine.contexts[0].tokens
        held = [*PROMPT, *(e.token for e in emissions)]
        common = next(
            (i for i, (a, b) in enumerate(zip(context, held, strict=False)) if a != b), len(held)
        )
        assert common >= len(held) - 1 - at  # all that was committed before the last round
        run.close()


@pytest.mark.parametrize("path", PATHS)
def test_l31_nothing_after_an_end_token_in_mid_proposal(path: str) -> None:
    """The end token is accepted at index 1 of 4: emitted last, counted last, kept last."""
    tokens = [4, 0, 6, 7, 8]

    def table(context: tuple[int, ...]) -> list[float]:
        place = len(context) - len(PROMPT)
        return [1.0 if v == tokens[place % 5] else 0.0 for v in range(V)]

    target = ToyTarget(table, V, end_tokens=frozenset({0}))
    engine = ToyDrafter(table, V)
    seen: list[Emission] = []
    with drafting(path, engine, target) as drafter:
        run = generate(target, drafter, PROMPT, Sampling(seed=1), DENSE, on_emission=seen.append)
        emissions = list(run)
    assert [e.token for e in emissions] == [4, 0]
    assert seen == emissions
    assert emissions[-1].finish is Finish.END_TOKEN
    assert list(run.tokens) == [4, 0]
    report = run.report
    assert (report.tokens, report.rounds, report.finish) == (2, 1, Finish.END_TOKEN)
    assert (report.drafted, report.verified, report.accepted) == (4, 4, 2)
    assert (report.after_end, report.rejected, report.overtaken, report.bonus) == (2, 0, 0, 0)
    assert report.accepted_by_position == [1, 1, 0, 0]


@pytest.mark.parametrize("path", ["colocated", "tcp"])
def test_l31_nothing_after_a_stop_string_or_the_token_limit(path: str) -> None:
    table = constant(*[1.0 if v == 5 else 0.0 for v in range(V)])
    target, engine = ToyTarget(table, V), ToyDrafter(table, V)
    with drafting(path, engine, target) as drafter:
        sampling = Sampling(seed=1, stop=("555",), max_tokens=50)
        run = generate(
            target, drafter, PROMPT, sampling, DENSE, decode=lambda ids: "".join(map(str, ids))
        )
        assert [e.token for e in run] == [5, 5, 5]
        assert run.report.finish is Finish.STOP_STRING
        for limit in range(1, 14):
            run = generate(target, drafter, PROMPT, Sampling(seed=1, max_tokens=limit), DENSE)
            assert len(list(run)) == limit
            assert run.report.finish is Finish.MAX_TOKENS
            # No draft is asked for that could not be used: all is accepted here, to the last one.
            assert run.report.after_end == 0


@pytest.mark.parametrize("path", PATHS)
def test_l32_the_client_goes_away(path: str) -> None:
    """Abandoned before, in and after the first round: both sides are freed, others go on."""
    target, engine = ToyTarget(mixed(V, 1), V), near()
    with drafting(path, engine, target) as drafter:
        for taken in (0, 1, 3, 9):
            run = generate(target, drafter, PROMPT, Sampling(seed=3), DENSE)
            for _ in range(taken):
                next(run)
            run.close()
            run.close()
            assert run.report.finish is Finish.ABANDONED
            assert next(run, None) is None
        whole = [
            e.token
            for e in generate(target, drafter, PROMPT, Sampling(seed=3, max_tokens=9), DENSE)
        ]
        assert len(whole) == 9
        assert len(engine.contexts) <= 1  # TCP: the last CANCEL may still be on its way


def test_an_iteration_that_breaks_off_frees_both_sides() -> None:
    target, engine = ToyTarget(mixed(V, 1), V), near()
    with drafting("colocated", engine, target) as drafter:
        with generate(target, drafter, PROMPT, Sampling(seed=3), DENSE) as run:
            for emission in run:
                if emission.index == 4:
                    break
        assert not engine.contexts
        assert not target.requests


@pytest.mark.parametrize("begun", [False, True])
def test_l32_texts_that_nobody_closes_keep_no_slot(begun: bool) -> None:
    target = ToyTarget(mixed(V, 2), V)
    sampling = Sampling(seed=1, max_tokens=30)
    with drafting("colocated", near(), target) as client:
        for _ in range(100):
            abandoned = generate(target, client, (1,), sampling, DENSE)
            if begun:
                next(abandoned)
        del abandoned
        gc.collect()
        assert target.requests == []
        running = generate(target, client, (1,), sampling, DENSE)
        list(running)
        assert running.report.drafted_rounds > 0


class Stateless(ToyTarget):
    """A target whose opaque context is None."""

    closed = 0

    def open(self, prompt: Sequence[int], sampling: Sampling) -> None:  # type: ignore[override]
        return None

    def score(  # type: ignore[override]
        self, context: None, committed: Sequence[int], drafts: Sequence[int]
    ) -> NDArray[np.float64]:
        return np.ones((len(drafts) + 1, V))

    def close(self, context: None) -> None:  # type: ignore[override]
        self.closed += 1


def test_a_context_that_is_none_is_a_context() -> None:
    """Texts end, are left early and are never begun: none of them keeps its slot."""
    target, engine = Stateless(mixed(V, 2), V), near()
    with drafting("colocated", engine, target) as client:
        for _ in range(5):
            list(generate(target, client, PROMPT, Sampling(seed=1, max_tokens=8), DENSE))
        with generate(target, client, PROMPT, Sampling(seed=1, max_tokens=8), DENSE) as running:
            next(running)
        generate(target, client, PROMPT, Sampling(seed=1, max_tokens=8), DENSE).close()
        assert target.closed == 7
        assert not engine.contexts


@pytest.mark.parametrize("path", PATHS)
def test_g22_a_constraint_that_begins_in_mid_round(path: str) -> None:
    """After the section's end (token 7) only ids 0..2 are legal: drafts and bonus obey at once."""

    def bans(context: tuple[int, ...]) -> set[int]:
        return set(range(3, V)) if 7 in context[len(PROMPT) :] else set()

    target = ToyTarget(mixed(V, 6), V, bans=bans)
    engine = ToyDrafter(mixed(V, 6), V)
    inside = 0  # rounds in which an accepted draft ends the section and more tokens follow it
    with drafting(path, engine, target) as drafter:
        for seed in range(12):
            run = generate(target, drafter, PROMPT, Sampling(seed=seed, max_tokens=30), DENSE)
            emissions = list(run)
            tokens = [e.token for e in emissions]
            if 7 in tokens:
                at = tokens.index(7)
                assert all(token < 3 for token in tokens[at + 1 :])
                inside += emissions[at].kind is Kind.ACCEPTED and at + 1 < len(tokens)
    assert inside > 0


@pytest.mark.parametrize("path", PATHS)
def test_g24_an_id_biased_to_minus_infinity_is_never_emitted(path: str) -> None:
    """The drafter is certain of id 5, the target forbids it: rejected at once in each round."""
    target = ToyTarget(mixed(V, 1), V, bans=lambda context: {5})
    engine = ToyDrafter(constant(*[1.0 if v == 5 else 0.0 for v in range(V)]), V)
    with drafting(path, engine, target) as drafter:
        run = generate(target, drafter, PROMPT, Sampling(seed=2, max_tokens=50), DENSE)
        assert 5 not in [e.token for e in run]
    assert run.report.accepted == 0
    assert run.report.rejected == run.report.drafted_rounds


@pytest.mark.parametrize("path", PATHS)
def test_g25_one_legal_token_only(path: str) -> None:
    target = ToyTarget(mixed(V, 1), V, bans=lambda context: set(range(V)) - {len(context) % V})
    engine = near()
    with drafting(path, engine, target) as drafter:
        run = generate(target, drafter, PROMPT, Sampling(seed=2, max_tokens=30), DENSE)
        assert [e.token for e in run] == [(len(PROMPT) + i) % V for i in range(30)]


@pytest.mark.parametrize("path", PATHS)
def test_e48_p_equal_to_q_never_rejects(path: str) -> None:
    """Tables in sixteenths, so that p is q exactly: K + 1 tokens a round."""
    row = (1, 2, 3, 4, 6)
    target, engine = ToyTarget(constant(*row), 5), ToyDrafter(constant(*row), 5)
    with drafting(path, engine, target) as drafter:
        run = generate(target, drafter, PROMPT, Sampling(seed=2, max_tokens=100), DENSE)
        assert len(list(run)) == 100
    assert run.report.rejected == 0
    assert run.report.rounds == 20


@pytest.mark.parametrize("bad", [math.nan, 0.0, math.inf, -1.0])
def test_e48_a_p_that_is_no_distribution_is_an_error_of_its_request_alone(bad: float) -> None:
    codes = {
        0.0: RefusalCode.ZERO_MASS,
        -1.0: RefusalCode.NEGATIVE_WEIGHT,
    }

    def table(context: tuple[int, ...]) -> Sequence[float]:
        if context[0] == 9 and len(context) > 6:
            return [bad] * V
        return mixed(V, 1)(context)

    target, engine = ToyTarget(table, V), near()
    with drafting("tcp", engine, target) as drafter:
        good = generate(target, drafter, (1, 2), Sampling(seed=2, max_tokens=30), DENSE)
        broken = generate(target, drafter, (9, 2), Sampling(seed=2, max_tokens=30), DENSE)
        next(good)
        with pytest.raises(ArithmeticRefusalError) as caught:
            for _ in broken:
                next(good)
        assert caught.value.code is codes.get(bad, RefusalCode.NON_FINITE)
        list(good)
        assert good.report.tokens == 30
        assert next(broken, None) is None


def test_e49_a_nan_row_of_the_drafter_is_a_named_miss() -> None:
    """Every prefix of even length has a NaN row: those rounds are target-only, the text goes on."""

    def table(context: tuple[int, ...]) -> Sequence[float]:
        return [math.nan] * V if len(context) % 2 == 0 else mixed(V, 1)(context)

    emissions, report = text(
        "tcp", DENSE, Sampling(seed=4, max_tokens=60), engine=ToyDrafter(table, V)
    )
    assert len(emissions) == 60
    misses = {reason.value: n for reason, n in report.misses.items()}
    assert misses["declined_refused_arithmetic"] >= 1


@pytest.mark.parametrize("path", PATHS)
def test_e51_past_the_drafters_context_the_target_goes_on_alone_and_says_so_once(
    path: str,
) -> None:
    target, engine, config = ToyTarget(mixed(V, 1), V), near(), DrafterConfig(max_context=32)
    with drafting(path, engine, target, config=config) as drafter:
        run = generate(target, drafter, PROMPT, Sampling(seed=4, max_tokens=80), DENSE)
        emissions = list(run)
    assert len(emissions) == 80
    late = [e.kind for e in emissions if e.index + len(PROMPT) >= 32 + 1]
    assert set(late) == {Kind.TARGET_ONLY}
    assert Kind.ACCEPTED in {e.kind for e in emissions}
    assert len(run.report.notes) == 1
    assert "context is full" in run.report.notes[0]
    assert set(run.report.misses) == {MissReason.CONTEXT_LIMIT}
    # A prompt that is longer than the drafter's context from the start.
    with drafting(path, engine, target, config=config) as drafter:
        run = generate(target, drafter, [1] * 40, Sampling(seed=4, max_tokens=8), DENSE)
        assert {e.kind for e in run} == {Kind.TARGET_ONLY}
        assert run.report.traffic.sent == 0


def test_the_targets_context_ends_the_text() -> None:
    target, engine = ToyTarget(mixed(V, 1), V, max_context=20), near()
    with drafting("tcp", engine, target) as drafter:
        run = generate(target, drafter, PROMPT, Sampling(seed=4, max_tokens=80), DENSE)
        assert len(list(run)) == 17
        assert run.report.finish is Finish.CONTEXT


@pytest.mark.parametrize("path", PATHS)
def test_m56_every_draft_is_accounted_for(path: str) -> None:
    for policy in (DENSE, SPARSE):
        emissions, report = text(path, policy, Sampling(seed=8, max_tokens=150))
        parts = report.accepted + report.rejected + report.overtaken + report.after_end
        assert report.drafted == report.verified == parts
        assert sum(report.proposed_by_position) == report.drafted
        kinds = Counter(e.kind for e in emissions)
        assert kinds[Kind.ACCEPTED] == report.accepted
        assert kinds[Kind.CORRECTED] == report.rejected
        assert kinds[Kind.BONUS] == report.bonus
        assert sum(kinds.values()) == report.tokens == 150
        assert report.rounds == report.drafted_rounds + report.target_only_rounds
