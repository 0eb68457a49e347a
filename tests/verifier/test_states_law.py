"""The law of the text with states that are there, missing, late, wrong or lost (P38, case M13).

Enumerated over all words through the real loop and messages, as in ``test_laws``: q depends on the
states, so each of these ways is another drafter, and all of them have the law of the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from draftwire.transport.channel import Channel
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import Layout
from testing.harness.paths import drafting
from testing.toys.enumeration import WordTree, law_of
from testing.toys.states import Rows, StateDrafter, StateTarget
from tests.verifier.test_laws import Law, Losing, Shared, dense, sparse, tables, targets_law

V, LENGTH, GRID = 2, 4, 2
PROMPT = (0, 1)
Changed = Callable[[int, Rows], tuple[int, Rows]]


def there(first: int, rows: Rows) -> tuple[int, Rows]:
    return first, rows


def missing(first: int, rows: Rows) -> tuple[int, Rows]:
    return first, rows[:0]


def late(first: int, rows: Rows) -> tuple[int, Rows]:
    """None of the first two tokens until a third one has its own."""
    return (first, rows) if first or len(rows) > 2 else (first, rows[:0])


def wrong(first: int, rows: Rows) -> tuple[int, Rows]:
    """The other token, everywhere: q follows from a text that is none."""
    rows = rows.copy()
    rows[:, 0] = 3 - rows[:, 0]
    return first, rows


def nan(first: int, rows: Rows) -> tuple[int, Rows]:
    rows = rows.copy()
    if len(rows) == 2:
        rows[1, -1] = np.nan
    return first, rows


WAYS: dict[str, Changed] = {
    "there": there,
    "missing": missing,
    "late": late,
    "wrong": wrong,
    "nan": nan,
}


def enumerated(
    way: Changed, path: str = "colocated", layout: Layout = Layout.DENSE
) -> tuple[Law, Law, StateDrafter, Counter[Kind]]:
    p, _ = tables(V, 4, GRID)
    target, engine = StateTarget(p, V, changed=way), StateDrafter(p, V)
    shared, kinds = Shared(), Counter[Kind]()
    policy = dense(1) if layout is Layout.DENSE else sparse(1, V)
    with drafting(path, engine, target, source=shared, audit=False) as client:

        def run(tree: WordTree) -> tuple[int, ...]:
            shared.tree = tree
            sampling = Sampling(seed=0, max_tokens=LENGTH)
            text = list(generate(target, client, PROMPT, sampling, policy, words=tree))
            kinds.update(each.kind for each in text)
            return tuple(each.token for each in text)

        law = law_of(run, GRID)
    return law, targets_law(p, PROMPT, LENGTH, V), engine, kinds


@pytest.mark.parametrize("layout", [Layout.DENSE, Layout.SPARSE], ids=lambda each: each.name)
@pytest.mark.parametrize("name", WAYS)
def test_the_law_is_the_target_s_whatever_becomes_of_the_states(name: str, layout: Layout) -> None:
    law, expected, engine, kinds = enumerated(WAYS[name], layout=layout)
    assert law == expected
    assert sum(law.values()) == Fraction(1)
    assert len(law) > 2
    assert kinds[Kind.ACCEPTED]
    assert (engine.informed > 0) is (name != "missing")
    assert engine.flat > 0


def test_the_law_is_the_target_s_over_tcp() -> None:
    law, expected, engine, _ = enumerated(there, "tcp")
    assert law == expected
    assert engine.informed > 0


def test_right_states_are_accepted_oftener_than_wrong_ones_or_none() -> None:
    kept = {}
    for name in ("there", "missing", "wrong"):
        *_, kinds = enumerated(WAYS[name])
        kept[name] = Fraction(kinds[Kind.ACCEPTED], sum(kinds.values()))
    assert kept["there"] > kept["missing"]
    assert kept["there"] > kept["wrong"]


def test_the_law_holds_where_a_round_with_states_is_lost() -> None:
    """The second STEP of every text, the first with rows, has no answer: they are sent again."""
    p, _ = tables(V, 4, GRID)
    target, engine = StateTarget(p, V), StateDrafter(p, V)
    shared = Shared()
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
            channels[-1].lost = frozenset({channels[-1].steps + 2})
            sampling = Sampling(seed=0, max_tokens=LENGTH)
            return tuple(
                each.token
                for each in generate(target, client, PROMPT, sampling, dense(1), words=tree)
            )

        law = law_of(run, GRID)
    assert law == targets_law(p, PROMPT, LENGTH, V)
    assert engine.informed > 0
    sent = Counter(first for first, count in target.yielded if count)
    assert sent[0] > len([each for each in engine.taken if each[0] == 0])
