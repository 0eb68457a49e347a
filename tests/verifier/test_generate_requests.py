"""Requests with and without a drafter, those that cannot work, and what they report."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from draftwire.errors import ConfigurationError
from draftwire.session.reasons import DropReason
from draftwire.verifier.emission import Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.miss import Miss, MissReason
from draftwire.verifier.no_drafter import NoDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.paths import drafting
from testing.toys.models import ToyDrafter, ToyTarget, mixed
from tests.verifier.test_generate import DENSE, PROMPT, SPARSE, V, near, text


def test_no_drafter_is_the_target_alone() -> None:
    target = ToyTarget(mixed(V, 1), V)
    run = generate(target, None, PROMPT, Sampling(seed=5, max_tokens=20))
    assert {e.kind for e in run} == {Kind.TARGET_ONLY}
    assert run.report.target_only_rounds == run.report.rounds == 20
    assert not run.report.misses
    again = generate(target, None, PROMPT, Sampling(seed=5, max_tokens=20))
    assert list(again.tokens) == []
    assert [e.token for e in again] == list(run.tokens)
    assert not target.requests


class Away(NoDrafter):
    """Lost in a round, then not to be reached."""

    def propose(self, policy: ProposalPolicy) -> Miss:
        super().propose(policy)
        first = self.round == 1
        reason = DropReason.DISCONNECTED if first else MissReason.NO_CONNECTION
        return Miss(reason, f"round {self.round}")


def test_that_the_drafter_is_away_is_said_once_whatever_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, engine = ToyTarget(mixed(V, 1), V), near()
    with drafting("colocated", engine, target) as drafter:
        monkeypatch.setattr(drafter, "open", lambda *_: Away())
        run = generate(target, drafter, PROMPT, Sampling(seed=1, max_tokens=4), SPARSE)
        assert len(list(run)) == 4
    # The last token leaves no room for a draft: nothing is asked for it.
    assert run.report.misses == {DropReason.DISCONNECTED: 1, MissReason.NO_CONNECTION: 2}
    assert [note for note in run.report.notes if "is away" in note] == run.report.notes
    assert len(run.report.notes) == 1
    assert "round 1" in run.report.notes[0]


def test_v18_a_target_whose_rows_are_wider_than_the_shared_vocabulary() -> None:
    """Padded ids are the target's own affair: emitted as it samples them, never drafted."""
    wide = ToyTarget(mixed(V + 3, 1), V)
    engine = ToyDrafter(mixed(V, 1, sharpness=1.0), V)
    alone = [e.token for e in generate(wide, None, PROMPT, Sampling(temperature=0, max_tokens=40))]
    with drafting("tcp", engine, wide) as drafter:
        for policy in (DENSE, SPARSE):
            run = generate(wide, drafter, PROMPT, Sampling(temperature=0, max_tokens=40), policy)
            assert [e.token for e in run] == alone
            for seed in range(8):
                run = generate(wide, drafter, PROMPT, Sampling(seed=seed, max_tokens=20), policy)
                drafted = [e.token for e in run if e.kind is Kind.ACCEPTED]
                assert all(token < V for token in drafted)


@pytest.mark.parametrize(
    ("prompt", "policy", "says"),
    [
        ((), DENSE, "empty"),
        ((0, V), DENSE, "outside"),
        ((-1,), DENSE, "outside"),
        ((1,) * 5000, DENSE, "shorten"),
        ((1,), None, "policy"),
        ((1,), ProposalPolicy(Layout.DENSE, 0, 1.0), "depth"),
    ],
)
def test_requests_that_cannot_work_are_refused_at_once(
    prompt: Sequence[int], policy: ProposalPolicy | None, says: str
) -> None:
    target, engine = ToyTarget(mixed(V, 1), V), near()
    with (
        drafting("colocated", engine, target) as drafter,
        pytest.raises(ConfigurationError, match=says),
    ):
        generate(target, drafter, prompt, Sampling(), policy)


def test_numpy_prompts_are_taken_as_they_are() -> None:
    target = ToyTarget(mixed(V, 1), V)
    run = generate(target, None, np.array(PROMPT), Sampling(seed=1, max_tokens=3))  # type: ignore[arg-type]
    assert len(list(run)) == 3


def test_the_report_is_plain_json() -> None:
    _, report = text("tcp", SPARSE, Sampling(seed=8, max_tokens=40))
    out = json.loads(json.dumps(report.as_dict()))
    assert out["tokens"] == 40
    assert out["bytes_received"] > out["drafted"] * 5 * 8
    assert out["seconds"]["total"] >= out["seconds"]["target"]


@pytest.mark.parametrize("prompt", ["123", b"12", [1.7], ["1"], [None], [1, 2.0]], ids=repr)
def test_a_prompt_that_is_no_ids_is_refused(prompt: list[int]) -> None:
    """Case M34: the text "123" is not the ids 1, 2 and 3."""
    target = ToyTarget(mixed(V, 1), V)
    with pytest.raises(ConfigurationError, match="what a tokenizer makes of a text"):
        generate(target, None, prompt, Sampling(seed=1, max_tokens=2))
    for ids in ([1, 2], np.array([1, 2])):
        with generate(target, None, ids, Sampling(seed=1, max_tokens=2)) as running:
            assert len(list(running)) == 2


def test_emissions_carry_the_text_that_has_become_certain() -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join(map(str, ids))

    target = ToyTarget(mixed(V, 1), V)
    for stop in ((), ("3",)):
        sampling = Sampling(seed=1, max_tokens=12, stop=stop)
        with generate(target, None, [1], sampling, decode=decode) as running:
            pieces = [emission.text for emission in running]
        whole = decode(running.tokens)
        assert "".join(pieces) == running.text == (whole.partition("3")[0] if stop else whole)
    with generate(target, None, [1], Sampling(seed=1, max_tokens=3)) as running:
        assert [emission.text for emission in running] == [""] * 3 and running.text == ""
