"""The embedded pair over loopback: tokens per target pass, and tokens/s of three ways to run it.

Remote (the drafter in a process of its own), colocated (in the verifier's process) and target-only
take turns with the same prompts and seeds, one CPU thread a process.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.common import Result
from draftwire.cli.comparison import (
    COLOCATED,
    REMOTE,
    TARGET_ONLY,
    compare,
    policy_for,
    rates_of,
    trio,
)
from draftwire.cli.demo import PROMPT
from draftwire.cli.options import LayoutChoice
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import Layout

DEPTH, SUPPORT = 5, 32
TEMPERATURES = (0.6, 0.8, 1.0)
PROMPTS = (
    PROMPT,
    "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def",
    "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser(",
)


def run(quick: bool, target: Path | None, drafter: Path | None) -> Result:
    """Measure at three temperatures; a turn is every prompt once, each way."""
    choice = LayoutChoice(Layout.SPARSE, SUPPORT)
    tokens, repeats = (24, 1) if quick else (96, 3)
    result = Result(
        f"pair over loopback, depth {DEPTH}, {choice}, {tokens} tokens, one thread each"
    )
    first = policy_for(choice, DEPTH, TEMPERATURES[0])
    with trio(target, drafter, first, threads=1) as pair:
        for temperature in TEMPERATURES[-1:] if quick else TEMPERATURES:
            policy = policy_for(choice, DEPTH, temperature)
            sampling = Sampling(temperature=temperature, seed=1, max_tokens=tokens)
            found = [
                compare(pair, pair.target.encode(prompt), sampling, policy, repeats)
                for prompt in (PROMPTS[:1] if quick else PROMPTS)
            ]
            reports = {way: [r for each in found for r in each[way]] for way in found[0]}
            rates = rates_of(reports)
            drafted = reports[REMOTE]
            proposed = sum(sum(report.proposed_by_position) for report in drafted)
            accepted = sum(sum(report.accepted_by_position) for report in drafted)
            passes = sum(report.rounds for report in drafted)
            result.figures[f"T={temperature}"] = {
                "tokens per target pass": round(sum(r.tokens for r in drafted) / passes, 2),
                "accepted of all drafts": round(accepted / proposed, 3) if proposed else 0.0,
                "remote tokens/s": round(statistics.median(rates[REMOTE]), 1),
                "colocated tokens/s": round(statistics.median(rates[COLOCATED]), 1),
                "target-only tokens/s": round(statistics.median(rates[TARGET_ONLY]), 1),
                "remote / colocated": _ratio(rates, COLOCATED),
                "remote / target-only": _ratio(rates, TARGET_ONLY),
                "audit share of the time": _audit_share(drafted),
            }
    return result


def _ratio(rates: dict[str, list[float]], peer: str) -> float:
    pairs = zip(rates[REMOTE], rates[peer], strict=True)
    return round(statistics.median(ours / theirs for ours, theirs in pairs), 3)


def _audit_share(reports: list[Report]) -> float:
    audit = sum(report.seconds.audit for report in reports)
    return round(audit / sum(report.seconds.total for report in reports), 4)
