"""A request of the vLLM engine whose parameters change: what was asked before is not used."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.vllm.policy import settings_of
from draftwire.engines.vllm.speculation import (
    ProposeRequest,
    SpeculationState,
    VerifyRequest,
)
from draftwire.session.reasons import DropReason
from draftwire.verifier.context import context_version
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.request import ClientRequest
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.toys.models import ToyDrafter, ToyTarget, constant

V = 3
POLICY = ProposalPolicy(Layout.SPARSE, 2, 1.0, support=V)


def scores(drafts: tuple[int, ...], allowed: int | None = None) -> np.ndarray:
    rows = np.zeros((len(drafts) + 1, V), np.float32)
    if allowed is not None:
        rows[:] = -np.inf
        rows[:, allowed] = 0
    return rows


def test_settings_are_what_p_depends_on() -> None:
    params = SimpleNamespace(temperature=0.5, seed=1, stop=["x"], structured_outputs=None)
    again = SimpleNamespace(temperature=0.5, seed=2, stop=["x"], structured_outputs=None)
    assert settings_of(params) == settings_of(again)
    for name, value in (("temperature", 0.6), ("stop", ["y"]), ("structured_outputs", "grammar")):
        changed = SimpleNamespace(**{**vars(params), name: value})
        assert settings_of(changed) != settings_of(params)


def test_a_proposal_of_before_is_dropped_and_the_next_ones_are_used() -> None:
    program = DrafterProgram(ToyDrafter(constant(1, 1, 1), V), DrafterConfig())
    with LocalDrafter(program, ToyTarget(constant(1, 1, 1), V)) as client:
        state = SpeculationState(client)
        active = state.begin("request", (0,), 7, drafted=True, settings=(1.0,))
        asked = active.drafting
        assert isinstance(asked, ClientRequest)
        before = asked.asking.context_version
        assert before == context_version(active.key, b"(1.0,)")
        state.verify_step(scores(()), [VerifyRequest(active, 0, (), False)])
        drafts = state.propose([ProposeRequest("request", POLICY)], 1.0)["request"]
        assert active.proposal is not None

        state.use_settings(active, (0.5,))
        assert asked.asking.context_version not in (0, before)
        assert active.proposal is None
        step = [VerifyRequest(active, 0, drafts, False)]
        assert state.verify_step(scores(drafts, allowed=2), step) == [(2,)]
        assert asked.asking.drops[DropReason.WRONG_CONTEXT] == 1

        for _ in range(3):
            drafts = state.propose([ProposeRequest("request", POLICY)], 1.0)["request"]
            assert active.proposal is not None
            step = [VerifyRequest(active, 0, drafts, False)]
            assert [len(each) for each in state.verify_step(scores(drafts), step)] == [3]  # p = q
        assert sum(asked.asking.drops.values()) == 1
        assert not any(program.counters.refused.values())
        state.finish("request")
