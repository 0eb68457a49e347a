"""What the doctor makes of measurements, and that it measures what is there."""

from __future__ import annotations

import pytest

from draftwire.errors import ConfigurationError, DrafterUnavailableError
from draftwire.verifier.estimate import Measured, Wanted, advice, at, best
from draftwire.verifier.examine import measure, proposal_seconds, round_trip
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.paths import PATHS, drafting
from testing.toys.models import ToyDrafter, ToyTarget, constant, mixed

GOOD = Measured(
    target=0.050,
    target_deep=0.055,
    draft=0.002,
    fixed=0.001,
    byte=1e-8,
    round_trip=0.0003,
    depth=5,
    accepted=(0.8, 0.64, 0.51, 0.4, 0.33),
)
WANTED = Wanted("sparse:32", 5, 0.5, 4096, 4096)
SIZES = [300 * depth for depth in range(1, 6)]


def changed(**values: object) -> Measured:
    return Measured(**{**{name: getattr(GOOD, name) for name in GOOD.__slots__}, **values})  # type: ignore[arg-type]


def told(measured: Measured, wanted: Wanted = WANTED) -> list[str]:
    asked = at(measured, wanted.layout, wanted.depth, SIZES[wanted.depth - 1])
    found = [
        best(measured, "sparse:32", SIZES),
        best(measured, "dense", [600_000 * depth for depth in range(1, 6)]),
    ]
    return list(advice(measured, asked, found, wanted))


def test_an_estimate_is_tokens_over_the_parts_of_a_round() -> None:
    found = at(GOOD, "sparse:32", 2, 600)
    assert found.tokens == pytest.approx(1 + 0.8 + 0.64)
    assert found.seconds == pytest.approx(0.052 + 2 * 0.002 + 0.001 + 600 * 1e-8)
    assert found.rate == pytest.approx(found.tokens / found.seconds)
    assert GOOD.alone == pytest.approx(20.0)


def test_nothing_to_change_where_all_is_well() -> None:
    assert told(GOOD) == []


def test_a_better_depth_is_named() -> None:
    slow = changed(draft=0.03, accepted=(0.8, 0.3, 0.1, 0.0, 0.0))
    (first, *_) = told(slow)
    assert first.startswith("use --depth 1") and "--layout" not in first


def test_a_better_layout_is_named() -> None:
    wanted = Wanted("dense", 5, 0.5, 4096, 4096)
    slow = changed(byte=1e-7)
    asked = at(slow, "dense", 5, 3_000_000)
    found = [best(slow, "sparse:32", SIZES), best(slow, "dense", [3_000_000] * 5)]
    (first, *_) = advice(slow, asked, found, wanted)
    assert first.startswith("use --layout sparse:32:")


def test_of_equal_layouts_the_one_that_is_wanted_stays() -> None:
    """Bytes that cost nothing: every layout is the same, and only the depth is advised."""
    even = changed(byte=0.0, draft=0.03, accepted=(0.8, 0.3, 0.1, 0.0, 0.0))
    for layout in ("sparse:32", "dense"):
        (first, *_) = told(even, Wanted(layout, 5, 5.0, 4096, 4096))
        assert first.startswith("use --depth 1: ") and first.endswith("make no difference here")
        assert told(changed(byte=0.0), Wanted(layout, 5, 5.0, 4096, 4096)) == []
    (first, *_) = told(even, Wanted("sparse:64", 5, 5.0, 4096, 4096))
    assert first.startswith("use --layout sparse:32 --depth 1")  # it was not among the measured


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        (changed(draft=0.5), "smaller drafter"),
        (changed(fixed=1.0, round_trip=0.9), "one switch"),
        (changed(fixed=1.0), "on the way"),
    ],
)
def test_drafting_that_does_not_pay_names_what_is_to_blame(measured: Measured, says: str) -> None:
    (first, second, *_) = told(measured)
    assert "slower than the target alone" in first
    assert says in second


def test_acceptance_deadline_and_context_have_a_word_each() -> None:
    assert any("accepted 20%" in text for text in told(changed(accepted=(0.2,) * 5)))
    (advised,) = [
        text for text in told(GOOD, Wanted("sparse:32", 5, 0.01, 1, 1)) if "--deadline-ms" in text
    ]
    assert "with --seed" in advised and "follows the rounds" in advised
    short = Wanted("sparse:32", 5, 0.5, 4096, 512)
    assert any("512" in text and "4096" in text for text in told(GOOD, short))


def test_a_proposal_longer_than_any_derived_deadline_needs_one_that_is_set() -> None:
    slow = changed(target=60.0, target_deep=61.0, fixed=12.0)
    (advised,) = [text for text in told(slow) if "--deadline-ms" in text]
    assert "no derived deadline is longer than 10 s" in advised
    fine = changed(target=2.0, target_deep=2.1, fixed=0.05, draft=0.001)
    assert not [text for text in told(fine) if "--deadline-ms" in text]


@pytest.mark.parametrize("path", PATHS)
def test_ping_and_proposals_are_timed_on_every_path(path: str) -> None:
    vocab = 64
    target, engine = ToyTarget(mixed(vocab, 1), vocab), ToyDrafter(mixed(vocab, 1), vocab)
    policy = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=8)
    with drafting(path, engine, target) as client:
        assert round_trip(client, 3) >= 0
        text = Sampling(temperature=1.0, seed=1, max_tokens=20)
        found = measure(target, client, (1, 2), text, policy, dense=True)
    assert found.target > 0 and found.target_deep >= found.target
    assert found.draft >= 0 and found.byte >= 0 and found.fixed >= found.round_trip
    assert len(found.accepted) == 3
    assert all(0 <= share <= 1 for share in found.accepted)
    assert list(found.accepted) == sorted(found.accepted, reverse=True)


def test_what_cannot_be_timed_is_said() -> None:
    vocab = 8
    ending = ToyTarget(constant(*[1.0] * vocab), vocab, end_tokens=frozenset(range(vocab)))
    engine = ToyDrafter(constant(*[1.0] * vocab), vocab)
    policy = ProposalPolicy(Layout.DENSE, 3, 1.0)
    with drafting("colocated", engine, ending) as client:
        with pytest.raises(ConfigurationError, match="ends at once"):
            measure(ending, client, (1,), Sampling(seed=1), policy, dense=True)
        refused = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=vocab + 1)
        with pytest.raises(DrafterUnavailableError, match="lost"):
            proposal_seconds(client, (1,), [refused])
