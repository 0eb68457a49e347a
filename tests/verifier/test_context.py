"""The context version: what it is made of, and a text whose context changes on its way."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.exact.words import RequestKey
from draftwire.session.reasons import DropReason
from draftwire.verifier.context import (
    MOST_VALUES,
    context_version,
    object_settings,
    sampling_settings,
)
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.request import ClientRequest
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.toys.enumeration import WordTree, law_of
from testing.toys.models import ToyDrafter, ToyRequest, ToyTarget

V = 3
PROMPT = (0,)
POLICY = ProposalPolicy(Layout.SPARSE, 2, 1.0, support=V)
KEY = RequestKey(5, 6)
SAMPLING = Sampling(temperature=0.8, seed=5, max_tokens=9)


def version_of(sampling: Sampling, ends: Sequence[int] = (), key: RequestKey = KEY) -> int:
    return context_version(key, sampling_settings(sampling, ends))


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.9},
        {"top_p": 0.5},
        {"top_k": 4},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"max_tokens": 10},
        {"stop": ("x",)},
    ],
)
def test_other_parameters_have_another_version(change: dict[str, Any]) -> None:
    assert version_of(replace(SAMPLING, **change)) != version_of(SAMPLING)


def test_the_version_is_the_contexts_and_not_the_seeds_to_read() -> None:
    assert version_of(SAMPLING) == version_of(replace(SAMPLING, seed=9, stream=3))  # no part of p
    assert version_of(SAMPLING, (2,)) != version_of(SAMPLING)
    assert version_of(SAMPLING, (2, 1)) == version_of(SAMPLING, (1, 2))
    assert version_of(replace(SAMPLING, temperature=1)) == version_of(
        replace(SAMPLING, temperature=1.0)
    )
    # Guessing the parameters tells nothing without the request's key.
    assert version_of(SAMPLING, key=RequestKey(6, 6)) != version_of(SAMPLING)
    assert version_of(SAMPLING, key=RequestKey(5, 7)) != version_of(SAMPLING)
    assert all(
        1 <= context_version(RequestKey(seed), b"") < 1 << 32 for seed in (0, 1, (1 << 128) - 1)
    )


@dataclass
class Processor:
    """A logits processor with one setting."""

    setting: Any


def test_settings_name_types_and_plain_values_as_they_are_now() -> None:
    processor = Processor(0.5)
    before = object_settings(processor)
    assert before == object_settings(Processor(0.5))
    processor.setting = 0.6
    assert object_settings(processor) != before
    assert object_settings(processor, processor) != object_settings(processor)


@pytest.mark.parametrize(
    ("setting", "other"),
    [
        ([[1, 2], [3]], [[1], [2, 3]]),  # bad words
        ((1, 2), (1, 3)),
        ({1, 2}, {1, 3}),
        ({(1, 2): -1.0}, {(1, 2): -2.0}),  # a bias
        (np.array([1, 2]), np.array([1, 3])),  # suppressed tokens
        (np.array([1.0]), np.array([[1.0]])),
        ([np.array([1])], [np.array([2])]),
        (list(range(MOST_VALUES - 1)), list(range(1, MOST_VALUES))),
    ],
)
def test_settings_tell_sequences_and_arrays_apart(setting: Any, other: Any) -> None:
    before = object_settings(Processor(setting))
    assert before == object_settings(Processor(copy.deepcopy(setting)))
    assert before != object_settings(Processor(other))


def test_settings_leave_out_what_is_large_or_no_value() -> None:
    loop: list[Any] = []
    loop.append(loop)
    nothing = object_settings(Processor(object()))
    for left_out in (list(range(MOST_VALUES)), np.zeros(MOST_VALUES + 1), loop, [object()]):
        assert object_settings(Processor(left_out)) == nothing


def test_settings_see_the_lists_and_tensors_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    stock = pytest.importorskip("transformers.generation.logits_process")
    for one, other in (
        (stock.NoBadWordsLogitsProcessor([[3]], 1), stock.NoBadWordsLogitsProcessor([[4]], 1)),
        (stock.SuppressTokensLogitsProcessor([3]), stock.SuppressTokensLogitsProcessor([4])),
    ):
        assert object_settings(one) == object_settings(copy.deepcopy(one)) != object_settings(other)
    assert object_settings(Processor(torch.tensor([1]))) != object_settings(
        Processor(torch.tensor([2]))
    )


@dataclass
class Changing(ToyTarget):
    """p is uniform over two ids after every token, and others once its context has changed.

    changes: before which look at the context it does so, counted from 0.
    """

    changes: int = 1 << 30
    looks: int = 0
    changed: bool = False

    def settings(self, context: ToyRequest) -> bytes:
        """Return the state of the grammar."""
        self.changed |= self.looks >= self.changes
        self.looks += 1
        return b"after" if self.changed else b"before"

    def p(self, sampling: Sampling, context: tuple[int, ...]) -> Any:
        """Return the weights under the grammar of now."""
        weights = super().p(sampling, context)
        weights[list(forbidden(context[-1], self.changed))] = 0.0
        return weights


def forbidden(last: int, changed: bool) -> tuple[int, ...]:
    return ((last + 1) % V if changed else last,)


class Watched(LocalDrafter):
    """Keeps its requests."""

    requests: list[ClientRequest]

    def open(self, prompt: Sequence[int], proposal_key: int) -> ClientRequest:
        request = super().open(prompt, proposal_key)
        self.requests = [*getattr(self, "requests", ()), request]
        return request


def halves(context: tuple[int, ...]) -> tuple[float, ...]:
    return ((1, 0, 1), (1, 1, 0), (0, 1, 1))[context[-1]]


def uniform(context: tuple[int, ...]) -> tuple[float, ...]:
    return (1, 1, 1)


@pytest.mark.parametrize("changes", [0, 1, 2, 3, 4])
def test_the_law_where_the_context_changes_before_or_after_a_proposal_was_asked(
    changes: int,
) -> None:
    """A look before each round, and one after its proposal: even counts change between rounds."""
    length, lost = 4, 0
    reports: list[Report] = []

    class Shared:
        tree: WordTree

        def __call__(self, key: object) -> WordTree:
            return self.tree

    shared = Shared()
    engine = ToyDrafter(halves, V)
    program = DrafterProgram(engine, DrafterConfig(), source=shared)
    plain = Changing(uniform, V)
    sampling = Sampling(seed=1, max_tokens=length)
    with Watched(program, plain, audit=False) as client:

        def run(tree: WordTree) -> tuple[tuple[int, ...], tuple[int, ...]]:
            shared.tree = tree
            target = Changing(uniform, V, changes=changes)
            running = generate(target, client, PROMPT, sampling, POLICY, words=tree)
            text: list[int] = []
            kinds: list[int] = []  # under which context each token was judged
            for emission in running:
                text.append(emission.token)
                kinds.append(int(target.changed))
            reports.append(running.report)
            return tuple(text), tuple(kinds)

        law = law_of(run, 2)
    assert sum(law.values()) == 1
    # Given everything before, and under which context it is judged, the next token is uniform over
    # what is allowed then.
    following: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[int, Fraction]] = {}
    for (text, kinds), mass in law.items():
        for place, token in enumerate(text):
            after = following.setdefault((text[:place], kinds[: place + 1]), {})
            after[token] = after.get(token, Fraction(0)) + mass
    for (text, kinds), after in following.items():
        allowed = {*range(V)} - {*forbidden((*PROMPT, *text)[-1], bool(kinds[-1]))}
        half = sum(after.values()) / 2
        assert after == dict.fromkeys(allowed, half), (text, kinds)
    for report in reports:
        lost += report.misses[DropReason.WRONG_CONTEXT]
        assert report.misses[DropReason.WRONG_CONTEXT] <= 1
    assert (lost > 0) == (changes % 2 == 1)
    assert any(report.drafted_rounds for report in reports)


def test_every_step_says_the_version_and_requests_differ() -> None:
    target = ToyTarget(uniform, V)
    program = DrafterProgram(ToyDrafter(halves, V), DrafterConfig())
    with Watched(program, target) as client:
        for sampling in (
            SAMPLING,
            replace(SAMPLING, temperature=0.7),
            replace(SAMPLING, stop=("y",)),
        ):
            decode = "".join if sampling.stop else None
            running = generate(
                target,
                client,
                PROMPT,
                sampling,
                POLICY,
                decode=None if decode is None else lambda tokens: "a" * len(tokens),
            )
            for _ in running:
                (*_, request) = client.requests
                assert request.asking.context_version == version_of(
                    sampling, key=sampling.request_key()
                )
            assert running.report.drafted_rounds > 0
            assert not running.report.discarded
        versions = {request.asking.context_version for request in client.requests}
    assert len(versions) == 3


def test_after_a_change_proposals_go_on_being_used() -> None:
    target = Changing(uniform, V, changes=7)
    program = DrafterProgram(ToyDrafter(uniform, V), DrafterConfig())
    with Watched(program, target) as client:
        running = generate(target, client, PROMPT, replace(SAMPLING, max_tokens=60), POLICY)
        assert len(list(running)) == 60
    report = running.report
    assert report.misses == {DropReason.WRONG_CONTEXT: 1}
    assert report.discarded == {DropReason.WRONG_CONTEXT: POLICY.depth}
    assert report.drafted == report.verified + POLICY.depth
    assert not any(program.counters.refused.values()), program.counters.refused
