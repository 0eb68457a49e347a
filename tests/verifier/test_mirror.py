"""Mirrored processors through the real loop: the law stays, and drafts are accepted (case M15)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftwire.drafter.contexts import HeldContext
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.mirror import Mirror
from draftwire.drafter.program import DrafterConfig
from draftwire.verifier.generate import generate
from draftwire.verifier.mirror import mirrored_bytes
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.processors import (
    ALWAYS,
    Allow,
    Bias,
    NoRepeatNgram,
    Occurrence,
    Processor,
    Repetition,
    Sequences,
    Suppress,
    decode_processors,
    encode_processors,
)
from draftwire.wire.registry import MAX_PROCESSOR_BYTES, MAX_PROCESSORS, Layout
from spec.oracle import processors as oracle
from testing.harness.paths import PATHS, drafting
from testing.toys.enumeration import WordTree, law_of
from testing.toys.models import ToyDrafter, ToyRequest, ToyTarget, constant, mixed
from tests.verifier.test_laws import Shared, targets_law

NEVER = float("-inf")


class ProcessedTarget(ToyTarget):
    """A target whose p is that of its table after processors, which it tells."""

    told: Sequence[Processor] = ()
    asked = 0

    def processors(self, context: ToyRequest) -> Sequence[Processor]:
        self.asked += 1
        return self.told

    def p(self, sampling: Sampling, context: tuple[int, ...]) -> NDArray[np.float64]:
        return np.array(self.processed(context))

    def processed(self, context: tuple[int, ...]) -> list[float]:
        with np.errstate(divide="ignore"):
            logits = np.log(np.array(self.table(context))).astype(np.float32).tolist()
        exact = [None if z == NEVER else Fraction(z) for z in logits]
        encoded = oracle.read_processors(encode_processors(self.told), self.vocab_size)
        made = oracle.processed(exact, context, encoded)
        return [0.0 if z is None else math.exp(z) for z in made]


# The law, by enumeration: no id stands twice in a row, and 0 does not stand at position 2. What is
# left is even, so that every edge is a half or a quarter.

V = 3
TWICE = Sequences(0, tuple((NEVER, (each, each)) for each in range(V)))
FORBIDDEN = [TWICE, Suppress(2, 3, (0,))]
WRONG = encode_processors(
    [Sequences(0, tuple((NEVER, (i, (i + d) % V)) for i in range(V) for d in (0, 1)))]
)
PROMPT = (1,)
LENGTH = 3


def doubled(context: tuple[int, ...]) -> Sequence[float]:
    """The drafter's own: twice for the id that must not stand here."""
    return [2.0 if each == context[-1] else 1.0 for each in range(V)]


def target() -> ProcessedTarget:
    made = ProcessedTarget(constant(1, 1, 1), V)
    made.told = FORBIDDEN
    return made


def ignoring(held: HeldContext[Any], task: Any, vocab_size: int) -> None:
    """A drafter that agrees to mirror and does not."""


def mistaken(held: HeldContext[Any], task: Any, vocab_size: int) -> Mirror:
    """A drafter that applies others than it was told."""
    mirror = Mirror(WRONG, task.prefix, vocab_size)
    mirror.follow(task.first_position)
    return mirror


POLICIES = [
    ProposalPolicy(Layout.DENSE, 2, 1.0),
    ProposalPolicy(Layout.SPARSE, 1, 1.0, support=V),
]


def law_with(path: str, policy: ProposalPolicy, grid: int) -> tuple[dict[Any, Fraction], int, int]:
    """The law of texts over every word, and how many drafts were accepted and rejected."""
    model, shared = target(), Shared()
    accepted = rejected = 0

    with drafting(path, ToyDrafter(doubled, V), model, source=shared, audit=False) as client:

        def run(tree: WordTree) -> tuple[int, ...]:
            nonlocal accepted, rejected
            shared.tree = tree
            sampling = Sampling(seed=0, max_tokens=LENGTH)
            with generate(model, client, PROMPT, sampling, policy, words=tree) as text:
                tokens = tuple(each.token for each in text)
            accepted += text.report.accepted
            rejected += text.report.rejected
            return tokens

        return law_of(run, grid, middle=True), accepted, rejected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("policy", POLICIES, ids=["dense", "sparse"])
@pytest.mark.parametrize("side", [None, ignoring, mistaken], ids=["mirrored", "ignored", "wrong"])
def test_the_law_is_the_targets_whatever_the_drafter_makes_of_processors(
    path: str, policy: ProposalPolicy, side: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if side is not None:
        monkeypatch.setattr(HeldContext, "mirror_of", side)
    grid = 4 if side is ignoring else 2  # parts that its q is even in
    law, accepted, rejected = law_with(path, policy, grid)
    rows = {context: target().p(Sampling(), context) for context in _contexts()}
    assert law == targets_law(lambda context: _even(rows[context]), PROMPT, LENGTH, V)
    assert accepted
    assert (rejected == 0) is (side is None)


def _contexts() -> list[tuple[int, ...]]:
    found = [PROMPT]
    for context in found:
        if len(context) < len(PROMPT) + LENGTH:
            found += [(*context, each) for each in range(V)]
    return found


def _even(row: NDArray[np.float64]) -> list[int]:
    return [int(weight > 0) for weight in row]


# Every kind at once, over rounds, prefills in pieces, failures and a changed setting.

W = 12
ALL: list[Processor] = [
    Repetition(0, 1.5),
    Occurrence(2, 0.5, 0.25),
    NoRepeatNgram(0, 3),
    Bias((1, 4), (0.75, NEVER)),
    Suppress(9, 14, (2, 3)),
    Allow(20, 30, tuple(range(6, W))),
    Sequences(0, ((NEVER, (5, 6)), (1.5, (7, 8, 9)), (0.5, (10,)))),
]
SPARSE = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=W)


def written(
    model: ProcessedTarget, client: Any, prompt: Sequence[int], seed: int, tokens: int = 40
) -> Report:
    sampling = Sampling(seed=seed, max_tokens=tokens)
    with generate(model, client, prompt, sampling, SPARSE) as text:
        list(text)
    return text.report


class Failing(ToyDrafter):
    """Raises in every 23rd pass."""

    passes = 0

    def forward(self, batch: Any) -> Any:
        self.passes += 1
        if self.passes % 23 == 0:
            raise RuntimeError("an engine fails")
        return super().forward(batch)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", [ToyDrafter, Failing])
def test_a_drafter_that_is_the_target_is_accepted_under_every_kind(path: str, kind: Any) -> None:
    """q is p but for its rounding, so that no draft of thousands is rejected."""
    table = mixed(W, 2)
    model = ProcessedTarget(table, W)
    model.told = ALL
    config = DrafterConfig(peer=PeerLimits(prefill_chunk_tokens=3))
    with drafting(path, kind(table, W), model, config=config) as client:
        for seed in range(4):
            report = written(model, client, (0, 5, 2, 3, 1, 7, 8, 0, 5)[seed:], seed)
            assert report.accepted > 10
            assert report.rejected == 0
    assert model.asked == 4  # once for a request


def test_without_mirroring_the_same_drafts_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldContext, "mirror_of", ignoring)
    table = mixed(W, 2)
    model = ProcessedTarget(table, W)
    model.told = ALL
    with drafting("colocated", ToyDrafter(table, W), model) as client:
        report = written(model, client, (0, 5, 2), 0)
    assert report.rejected > report.accepted / 4


def test_processors_are_those_of_the_latest_settings() -> None:
    class Changing(ProcessedTarget):
        """Another id is forbidden from the tenth token on, which its settings say."""

        def settings(self, context: ToyRequest) -> bytes:
            self.told = [Suppress(0, ALWAYS, (1 if len(context.committed) < 10 else 2,))]
            return encode_processors(self.told)

    table = mixed(W, 2)
    model = Changing(table, W)
    with drafting("colocated", ToyDrafter(table, W), model) as client:
        report = written(model, client, (0, 5), 3)
    assert model.asked == 2
    assert report.rejected == 0
    assert report.accepted > 10


def test_towards_a_drafter_that_mirrors_nothing_nothing_is_said() -> None:
    """The policy goes without processors, and rounds are drafted as before."""
    table = mixed(W, 2)
    model = ProcessedTarget(table, W)
    model.told = ALL
    config = DrafterConfig(mirror=False)
    with drafting("memory", ToyDrafter(table, W), model, config=config) as client:
        report = written(model, client, (0, 5), 3)
        assert client.agreed is not None
        assert not client.agreed.mirrors
    assert not report.misses
    assert report.accepted
    assert report.rejected


# What a target says, cut to what a STEP can carry.

anything = st.one_of(st.floats(), st.floats(-4, 4), st.integers(-9, 9).map(float))
id_ = st.integers(-2, W + 2)
place = st.integers(-5, 1 << 33)
raw: st.SearchStrategy[Processor] = st.one_of(
    st.builds(Repetition, place, anything),
    st.builds(Occurrence, place, anything, anything),
    st.builds(NoRepeatNgram, place, st.integers(-1, 80)),
    st.dictionaries(id_, anything, max_size=4).map(
        lambda found: Bias(tuple(found), tuple(found.values()))
    ),
    st.builds(Suppress, place, place, st.lists(id_, max_size=4).map(tuple)),
    st.builds(Allow, place, place, st.lists(id_, max_size=4).map(tuple)),
    st.builds(
        Sequences,
        place,
        st.lists(st.tuples(anything, st.lists(id_, max_size=70).map(tuple)), max_size=4).map(tuple),
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(raw, max_size=MAX_PROCESSORS + 4))
def test_whatever_a_target_says_becomes_processors_that_a_step_can_carry(
    said: list[Processor],
) -> None:
    encoded = mirrored_bytes(said, W)
    decoded = decode_processors(encoded, W)
    assert encode_processors(decoded) == encoded
    assert mirrored_bytes(decoded, W) == encoded


def test_what_can_be_said_is_said_whole() -> None:
    assert decode_processors(mirrored_bytes(ALL, W), W) == tuple(ALL)


def test_a_processor_without_room_is_left_out_and_those_behind_it_are_not() -> None:
    wide = Allow(0, ALWAYS, tuple(range(MAX_PROCESSOR_BYTES // 4)))
    kept = [Repetition(0, 1.5), NoRepeatNgram(0, 2)]
    said = [kept[0], wide, kept[1]]
    assert decode_processors(mirrored_bytes(said, 1 << 15), 1 << 15) == tuple(kept)


def test_penalties_that_do_nothing_are_not_said() -> None:
    assert mirrored_bytes([Repetition(0, 1.0), Occurrence(0, 0.0, 0.0)], W) == b""
