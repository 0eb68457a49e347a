"""Tokens/s of ``--depth auto`` beside fixed depths, on texts that are easy and hard to draft.

The embedded pair over loopback, the drafter in a process of its own, one CPU thread each. All ways
take turns with the same prompts and seeds; a way's rate is that of all its texts together.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import Result
from benchmarks.pair import PROMPTS, SUPPORT
from draftwire.cli.comparison import DEADLINE_SECONDS, policy_for
from draftwire.cli.drafters import remote_drafter
from draftwire.cli.models import Target
from draftwire.cli.options import MOST_AUTO_DEPTH, LayoutChoice
from draftwire.cli.output import Notes
from draftwire.cli.process import drafter_process
from draftwire.verifier.generate import generate
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import Layout

DEPTHS = (1, 2, 3, 4, 5, 6, 8)
AUTO = "auto"
PROSE = (
    "The river had been rising since",
    "Dear reader, when the war ended my",
    "1,204 and 88 make 1,292; 17 and",
)
SETS = {"code, T=0.6": (PROMPTS, 0.6), "prose, T=1.0": (PROSE, 1.0)}
CHOICE = LayoutChoice(Layout.SPARSE, SUPPORT)


def run(quick: bool, target: Path | None, drafter: Path | None) -> Result:
    """Measure each set; a turn is every prompt once, each way."""
    tokens, turns = (48, 2) if quick else (128, 6)
    result = Result(f"depths over loopback, {CHOICE}, {tokens} tokens a text, {turns} turns")
    arguments = ["--threads", "1", "--max-depth", str(MOST_AUTO_DEPTH), "--log-level", "warning"]
    arguments += [] if drafter is None else ["--model", str(drafter)]
    with ExitStack() as stack:
        loaded = Target(target, device="cpu", threads=1)
        address = stack.enter_context(drafter_process(arguments))
        fixed, auto = (
            stack.enter_context(
                remote_drafter(
                    address,
                    loaded,
                    policy_for(CHOICE, MOST_AUTO_DEPTH, 1.0),
                    Notes(),
                    deadline=DEADLINE_SECONDS,
                    early_stop=early,
                )
            )
            for early in (False, True)
        )
        ways = {str(depth): (fixed, depth) for depth in DEPTHS} | {AUTO: (auto, MOST_AUTO_DEPTH)}
        for name, (prompts, temperature) in SETS.items():
            rates: dict[str, list[float]] = defaultdict(list)
            accepted: dict[str, list[Report]] = defaultdict(list)
            for turn in range(-1, turns):  # the first is a warm-up
                for way, (client, depth) in ways.items():
                    reports = [
                        _text(loaded, client, prompt, temperature, depth, turn + 1, tokens)
                        for prompt in prompts
                    ]
                    if turn >= 0:
                        spent = sum(each.seconds.total for each in reports)
                        rates[way].append(sum(each.tokens for each in reports) / spent)
                        accepted[way] += reports
            result.figures[f"{name}: tokens/s, tokens a pass, drafts a round"] = {
                way: f"{statistics.median(each):.1f}, {_passes(accepted[way])}"
                for way, each in rates.items()
            }
            median = {way: statistics.median(each) for way, each in rates.items() if way != AUTO}
            best = max(median, key=median.__getitem__)
            pairs = zip(rates[AUTO], rates[best], strict=True)
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            result.figures[f"{name}: auto / best fixed depth ({best})"] = round(ratio, 3)
    return result


def _text(
    target: Target,
    client: RemoteDrafter,
    prompt: str,
    temperature: float,
    depth: int,
    seed: int,
    tokens: int,
) -> Report:
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=tokens)
    policy = policy_for(CHOICE, depth, temperature)
    with generate(target.engine, client, target.encode(prompt), sampling, policy) as running:
        for _ in running:
            continue
    return running.report


def _passes(reports: list[Report]) -> str:
    rounds = sum(each.rounds for each in reports)
    tokens, drafted = sum(each.tokens for each in reports), sum(each.drafted for each in reports)
    return f"{tokens / rounds:.2f}, {drafted / rounds:.2f}"
