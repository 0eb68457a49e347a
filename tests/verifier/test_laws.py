"""The law of the text, enumerated over all words through the real loop, messages and sockets.

p and q are tables of halves or quarters, chosen so that every edge a word is held against is a
multiple of one; two or four words then stand for all 2^24, and the law is exact, not sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.kernels.protocol import Kernels, Round
from draftwire.transport.channel import Channel, Part
from draftwire.verifier import judge
from draftwire.verifier.client import DraftClient
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.judge import Judgement
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import HEADER_BYTES, Layout, Outcome
from testing.harness.paths import drafting
from testing.toys.enumeration import WordTree, law_of
from testing.toys.models import Table, ToyDrafter, ToyTarget

Row = tuple[int, ...]
Law = dict[tuple[int, ...], Fraction]


def rows_of(vocab_size: int, grid: int) -> list[Row]:
    """All distributions over the vocabulary in multiples of 1/grid."""
    return [row for row in product(range(grid + 1), repeat=vocab_size) if sum(row) == grid]


def on_grid(p: Row, q: Row, grid: int) -> bool:
    """Whether every acceptance threshold and every edge of the residual is a multiple of 1/grid."""
    thresholds = [Fraction(a, c) for a, c in zip(p, q, strict=True) if c]
    if any(t < 1 and (t * grid).denominator != 1 for t in thresholds):
        return False
    residual = [max(a - c, 0) for a, c in zip(p, q, strict=True)]
    total = sum(residual)
    return not total or all((Fraction(r, total) * grid).denominator == 1 for r in residual)


def tables(vocab_size: int, salt: int, grid: int) -> tuple[Table, Table]:
    """Return p and q, another pair on the grid after every context, far apart ones included."""
    rows = rows_of(vocab_size, grid)
    choices = [(p, q) for p in rows for q in rows if on_grid(p, q, grid)]

    def place(context: tuple[int, ...]) -> int:
        value = salt
        for token in context:
            value = (value * 31 + token + 7) % 104729
        return value % len(choices)

    return (lambda context: choices[place(context)][0], lambda context: choices[place(context)][1])


def targets_law(table: Table, prompt: Sequence[int], length: int, vocab_size: int) -> Law:
    """The law of the target sampling alone: the product of its own rows."""
    law: Law = {}
    for text in product(range(vocab_size), repeat=length):
        mass = Fraction(1)
        for place in range(length):
            row = [Fraction(weight) for weight in table((*prompt, *text[:place]))]
            mass *= row[text[place]] / sum(row)
        if mass:
            law[text] = mass
    return law


def enumerated(
    attach: Callable[[WordTree], DraftClient],
    target: ToyTarget,
    prompt: Sequence[int],
    policy: ProposalPolicy,
    length: int,
    grid: int,
    seen: set[Kind] | None = None,
) -> Law:
    def run(tree: WordTree) -> tuple[int, ...]:
        sampling = Sampling(seed=0, max_tokens=length)
        emissions = list(generate(target, attach(tree), prompt, sampling, policy, words=tree))
        if seen is not None:
            seen.update(emission.kind for emission in emissions)
        return tuple(emission.token for emission in emissions)

    return law_of(run, grid)


class Shared:
    """The proposal's words, from whichever tree is walked now."""

    def __init__(self) -> None:
        self.tree: WordTree | None = None

    def __call__(self, key: int) -> WordTree:
        assert self.tree is not None
        return self.tree


def law_over(
    path: str,
    vocab_size: int,
    policy: ProposalPolicy,
    length: int,
    grid: int,
    salt: int,
    seen: set[Kind] | None = None,
) -> tuple[Law, Law]:
    """Return the law of the real loop over a path, and the target's own."""
    p, q = tables(vocab_size, salt, grid)
    target, engine = ToyTarget(p, vocab_size), ToyDrafter(q, vocab_size)
    shared, prompt = Shared(), (salt % vocab_size,)
    with drafting(path, engine, target, source=shared, audit=False) as client:

        def attach(tree: WordTree) -> DraftClient:
            shared.tree = tree
            return client

        law = enumerated(attach, target, prompt, policy, length, grid, seen)
    return law, targets_law(p, prompt, length, vocab_size)


def dense(depth: int) -> ProposalPolicy:
    return ProposalPolicy(Layout.DENSE, depth, 1.0)


def sparse(depth: int, support: int) -> ProposalPolicy:
    return ProposalPolicy(Layout.SPARSE, depth, 1.0, support=support)


CASES = [  # vocabulary, policy, length, grid, salt; chosen to be rich for their number of words
    (3, sparse(2, 2), 4, 2, 0),
    (4, sparse(2, 4), 3, 2, 1),
    (3, dense(2), 3, 2, 3),
    (2, dense(3), 4, 2, 6),
    (3, sparse(2, 2), 4, 2, 3),
    (4, dense(2), 3, 2, 5),
    (3, dense(1), 3, 4, 5),
]


def test_the_law_is_the_targets_colocated() -> None:
    seen: set[Kind] = set()
    for case in CASES:
        law, expected = law_over("colocated", *case, seen)
        assert law == expected
        assert sum(law.values()) == 1
    assert seen == set(Kind)


@pytest.mark.parametrize("case", CASES[:3])
def test_the_law_is_the_targets_over_tcp(case: tuple[int, ProposalPolicy, int, int, int]) -> None:
    law, expected = law_over("tcp", *case)
    assert law == expected


def test_a_narrow_support_keeps_the_law() -> None:
    """Sparse top-1 of q: a point mass, far from p; the residual covers the whole vocabulary."""
    p = (1, 1, 2)
    target, engine = ToyTarget(lambda context: p, 3), ToyDrafter(lambda context: (1, 1, 2), 3)
    shared = Shared()
    with drafting("colocated", engine, target, source=shared, audit=False) as client:

        def attach(tree: WordTree) -> DraftClient:
            shared.tree = tree
            return client

        law = enumerated(attach, target, (0,), sparse(2, 1), 2, 4)
    assert law == {(x, y): Fraction(p[x] * p[y], 16) for x in range(3) for y in range(3)}


class Losing:
    """A channel that loses the answers to the n-th STEP it carries, for n in a fixed set."""

    def __init__(self, inner: Channel, lost: frozenset[int]) -> None:
        self.inner = inner
        self.lost = lost
        self.steps = 0

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        if bytes(parts[0])[5] == 2:  # the type byte of a STEP
            self.steps += 1
        self.inner.send(parts, deadline)

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        if self.steps in self.lost:
            scratch = memoryview(bytearray(1 << 16))
            while True:  # until the deadline, which raises
                self.inner.receive_into(scratch, deadline)
        return self.inner.receive_into(buffer, deadline)

    def close(self) -> None:
        self.inner.close()


def test_the_law_holds_when_replies_are_lost_whatever_they_hold() -> None:
    """The first reply of every text is lost: target-only there, the same law, drafts later."""
    p, q = tables(2, 3, 2)
    target, engine = ToyTarget(p, 2), ToyDrafter(q, 2)
    shared, kinds = Shared(), set()
    channels: list[Losing] = []

    def through(channel: Channel) -> Channel:
        channels.append(Losing(channel, frozenset()))
        return channels[-1]

    with drafting(
        "colocated", engine, target, source=shared, audit=False, through=through
    ) as client:
        client.connect()

        def run(tree: WordTree) -> tuple[int, ...]:
            shared.tree = tree
            channels[-1].lost = frozenset({channels[-1].steps + 1})
            sampling = Sampling(seed=0, max_tokens=3)
            emissions = list(generate(target, client, (0,), sampling, dense(2), words=tree))
            kinds.update((e.index, e.kind) for e in emissions)
            return tuple(e.token for e in emissions)

        law = law_of(run, 2)
    assert law == targets_law(p, (0,), 3, 2)
    assert {kind for index, kind in kinds if index == 0} == {Kind.TARGET_ONLY}
    assert len({kind for index, kind in kinds if index > 0}) > 1


def test_g21_a_draft_that_the_grammar_forbids_is_an_ordinary_rejection() -> None:
    """p = (1/2, 1/2, 0), q = (1/2, 1/4, 1/4): (1/2, 1/2, 0), and not (5/8, 3/8, 0)."""
    target = ToyTarget(lambda context: (2, 2, 3), 3, bans=lambda context: {2})
    engine = ToyDrafter(lambda context: (2, 1, 1), 3)
    shared = Shared()
    with drafting("tcp", engine, target, source=shared, audit=False) as client:

        def attach(tree: WordTree) -> DraftClient:
            shared.tree = tree
            return client

        law = enumerated(attach, target, (0,), dense(1), 2, 4)
    half = Fraction(1, 4)
    assert law == {(0, 0): half, (0, 1): half, (1, 0): half, (1, 1): half}


def test_a_loss_that_depends_on_the_draft_is_a_selection() -> None:
    """The trap of law 4, so that its number is known: q = p = (1/2, 1/2), and the reply is lost
    whenever it drew 0; then 0 comes with 1/4 in that place, not with 1/2."""
    target = ToyTarget(lambda context: (2, 2), 2)
    engine = ToyDrafter(lambda context: (2, 2), 2)
    shared = Shared()

    class Selecting(Losing):
        def receive_into(self, buffer: memoryview, deadline: float) -> int:
            count = self.inner.receive_into(buffer, deadline)
            # The first row's token stands four bytes into the first position of a REPLY.
            at = HEADER_BYTES + 64 + 4
            if buffer[5] == 3 and int.from_bytes(buffer[at : at + 4], "little") == 0:
                raise TimeoutError
            return count

    with drafting(
        "colocated",
        engine,
        target,
        source=shared,
        audit=False,
        through=lambda channel: Selecting(channel, frozenset()),
    ) as client:

        def run(tree: WordTree) -> int:
            shared.tree = tree
            sampling = Sampling(seed=0, max_tokens=2)
            emissions = list(generate(target, client, (0,), sampling, dense(1), words=tree))
            return emissions[0].token

        law = law_of(run, 2)
    assert law == {0: Fraction(1, 4), 1: Fraction(3, 4)}


@pytest.mark.parametrize("policy", [dense(2), sparse(2, 2)])
def test_e49_a_draft_model_that_has_no_row_after_some_token_keeps_the_law(
    policy: ProposalPolicy,
) -> None:
    """q = p = (1/2, 1/2), and NaN after every 0: were the round declined, 0 would come with 1/4."""
    nan = (math.nan, math.nan)
    target = ToyTarget(lambda context: (2, 2), 2)
    engine = ToyDrafter(lambda context: nan if context[1:] and context[-1] == 0 else (2, 2), 2)
    shared = Shared()
    with drafting("colocated", engine, target, source=shared, audit=False) as client:

        def attach(tree: WordTree) -> DraftClient:
            shared.tree = tree
            return client

        law = enumerated(attach, target, (1,), policy, 3, 2)
    assert law == {text: Fraction(1, 8) for text in product((0, 1), repeat=3)}


def law_before_nan(policy: ProposalPolicy, vocab_size: int, salt: int, good: int) -> Law:
    """The law of what is emitted where p is a distribution for ``good`` tokens and NaN after them.

    Of each text also: whether it ends with the error of the place behind it.
    """
    p, q = tables(vocab_size, salt, 2)
    prompt = (salt % vocab_size,)

    def table(context: tuple[int, ...]) -> Sequence[float]:
        return p(context) if len(context) < len(prompt) + good else [math.nan] * vocab_size

    target, engine = ToyTarget(table, vocab_size), ToyDrafter(q, vocab_size)
    shared = Shared()
    with drafting("colocated", engine, target, source=shared, audit=False) as client:

        def run(tree: WordTree) -> tuple[int, ...]:
            shared.tree, said = tree, []
            sampling = Sampling(seed=0, max_tokens=good + 2)
            text = generate(target, client, prompt, sampling, policy, words=tree)
            with pytest.raises(ArithmeticRefusalError) as refused:
                said.extend(emission.token for emission in text)
            assert refused.value.code is RefusalCode.NON_FINITE
            assert list(text.tokens)[: len(said)] == said
            report = text.report
            judged = report.accepted + report.rejected + report.overtaken + report.after_end
            assert report.verified == judged
            return tuple(text.tokens)

        return law_of(run, 2)


BEFORE_NAN = [(2, dense(3), 6, 2), (3, sparse(2, 2), 0, 2), (2, sparse(3, 2), 4, 2)]


@pytest.mark.parametrize(("vocab_size", "policy", "salt", "good"), BEFORE_NAN)
def test_e48_the_text_before_a_row_of_nan_has_the_targets_law(
    vocab_size: int, policy: ProposalPolicy, salt: int, good: int
) -> None:
    """The third row is NaN: two tokens come out as ever, then the error of the third."""
    law = law_before_nan(policy, vocab_size, salt, good)
    assert law == targets_law(
        tables(vocab_size, salt, 2)[0], (salt % vocab_size,), good, vocab_size
    )


def first_of_row(judgement: Judgement) -> Judgement:
    """In place of a round that meets a refused row, the largest of its first row."""
    return replace(judgement, outcome=Outcome.CORRECTION, accepted=0, tokens=(0,), refusal=None)


def nothing(judgement: Judgement) -> Judgement:
    """A round that meets a refused row commits nothing."""
    return replace(judgement, accepted=0, tokens=())


@pytest.mark.parametrize("mutant", [first_of_row, nothing])
def test_mutants_that_lose_the_drafts_before_a_refused_row_are_found(
    mutant: Callable[[Judgement], Judgement], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(kernels: Kernels[Any], scores: Any, rounds: Sequence[Round]) -> list[Judgement]:
        found = judge.judge(kernels, scores, rounds)
        return [mutant(one) if one.refusal and one.tokens else one for one in found]

    monkeypatch.setattr("draftwire.verifier.generate.judge", changed)
    found = []
    for vocab_size, policy, salt, good in BEFORE_NAN:
        table = tables(vocab_size, salt, 2)[0]
        due = targets_law(table, (salt % vocab_size,), good, vocab_size)
        found.append(law_before_nan(policy, vocab_size, salt, good) != due)
    assert any(found)
