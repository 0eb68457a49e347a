"""Drafting for 1 to 8 sessions: together in shared passes, and one after another.

What is timed is a whole proposal of each session: forward passes, quantising, draws. The second way
is that of a model that cannot be batched. Turn by turn, in one process of one thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import Goal, Result, alternate, ratio
from draftwire.drafter.propose import DraftJob, propose
from draftwire.engines.hf import HfDraftEngine, load_folder
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

SESSIONS = (1, 2, 4, 8)
DEPTH = 5
PROMPT = 64  # tokens
POLICY = ProposalPolicy(Layout.SPARSE, DEPTH, 0.8, support=32)
TOGETHER, APART = "together", "one after another"
ALONE_LIMIT = 1.1  # one session: shared passes by plain ones
EIGHT_LIMIT = 0.5  # eight sessions: together by one after another


def run(quick: bool, drafter: Path) -> Result:
    """Measure tokens a second of both ways for each number of sessions."""
    result = Result(f"drafting, depth {DEPTH}, sparse 32, {drafter.name}, one thread, tokens/s")
    loaded = load_folder(drafter)
    engines = {
        TOGETHER: HfDraftEngine.from_loaded(loaded),
        APART: HfDraftEngine.from_loaded(loaded, together=False),
    }
    result.figures["the model can be batched"] = engines[TOGETHER].batches
    for sessions in SESSIONS:
        ways = {name: _round(engine, sessions) for name, engine in engines.items()}
        times = alternate(ways, (30 if quick else 120) // sessions + 10)
        rates = {
            name: round(sessions * DEPTH / statistics.median(each)) for name, each in times.items()
        }
        by = ratio(times, TOGETHER, APART)
        result.figures[f"{sessions} sessions"] = {**rates, "times as fast": round(1 / by, 2)}
        if sessions == 1:
            result.goals.append(Goal("one session, shared pass / plain pass", by, ALONE_LIMIT))
        if sessions == 8:
            result.goals.append(Goal("8 sessions, together / one by one", by, EIGHT_LIMIT))
    return result


def _round(engine: HfDraftEngine, sessions: int) -> Callable[[], object]:
    """Return a round: every session's proposal after its prompt, the prompt's state being held."""
    contexts = [engine.open() for _ in range(sessions)]
    for at, context in enumerate(contexts):
        engine.forward([(context, [(7 * at + each) % 1000 + 3 for each in range(PROMPT)])])
    rounds = 0

    def once() -> None:
        nonlocal rounds
        rounds += 1
        jobs: list[DraftJob[Any]] = []
        for at, context in enumerate(contexts):
            engine.truncate(context, PROMPT - 1)
            jobs.append(DraftJob(context, [at + 3], POLICY, 99 + at, 1, rounds, PROMPT))
        if not all(isinstance(each, Draft) for each in propose(engine, jobs)):
            raise RuntimeError("a proposal was refused")

    return once
