"""The embedded DSpark drafter beside the embedded language model, over loopback, in turns.

Both draft for the embedded target, each in a process of its own, one CPU thread a process. A way's
rate is that of all its texts of a turn together.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from contextlib import ExitStack

from benchmarks.common import Result
from benchmarks.pair import PROMPTS
from draftwire.cli.comparison import DEADLINE_SECONDS, policy_for
from draftwire.cli.drafters import remote_drafter
from draftwire.cli.models import Target
from draftwire.cli.options import LayoutChoice
from draftwire.cli.output import Notes
from draftwire.cli.process import drafter_process
from draftwire.engines.hf import embedded_folder
from draftwire.verifier.generate import generate
from draftwire.verifier.remote import RemoteDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import Layout

ALONE = "target-only"
LANGUAGE_MODEL = "language model, K=5, sparse:32"
WAYS = {
    LANGUAGE_MODEL: ("drafter", 5, 32),
    "DSpark, K=5, sparse:32": ("dspark", 5, 32),
    "DSpark, K=5, sparse:128": ("dspark", 5, 128),
    "DSpark, K=6, sparse:128": ("dspark", 6, 128),
}
TEMPERATURES = (0.6, 1.0)


def run(quick: bool) -> Result:
    """Measure at two temperatures; a turn is every prompt once, each way."""
    tokens, turns = (64, 3) if quick else (128, 8)
    result = Result(f"block drafter over loopback, {tokens} tokens a text, {turns} turns")
    with ExitStack() as stack:
        target = Target(None, device="cpu", threads=1)
        clients = {}
        for name in ("drafter", "dspark"):
            arguments = ["--threads", "1", "--log-level", "warning"]
            arguments += ["--model", str(embedded_folder(name))]
            address = stack.enter_context(drafter_process(arguments))
            policy = policy_for(LayoutChoice(Layout.SPARSE, 128), 6, 1.0)
            client = remote_drafter(address, target, policy, Notes(), deadline=DEADLINE_SECONDS)
            clients[name] = stack.enter_context(client)
        for temperature in TEMPERATURES:
            rates: dict[str, list[float]] = defaultdict(list)
            reports: dict[str, list[Report]] = defaultdict(list)
            for turn in range(-1, turns):  # the first is a warm-up
                for way in (*WAYS, ALONE):
                    made = _texts(target, clients, way, temperature, turn + 1, tokens)
                    if turn >= 0:
                        spent = sum(each.seconds.total for each in made)
                        rates[way].append(sum(each.tokens for each in made) / spent)
                        reports[way] += made
            result.figures[f"T={temperature}: tokens/s, / language model, tokens a pass"] = {
                way: f"{statistics.median(each):.1f}, {_beside(rates, way):.3f},"
                f" {_passes(reports[way]):.2f}"
                for way, each in rates.items()
            }
    return result


def _texts(
    target: Target,
    clients: dict[str, RemoteDrafter],
    way: str,
    temperature: float,
    seed: int,
    tokens: int,
) -> list[Report]:
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=tokens)
    name, depth, support = WAYS.get(way, ("", 1, 1))
    policy = policy_for(LayoutChoice(Layout.SPARSE, support), depth, temperature)
    reports = []
    for prompt in PROMPTS:
        ids = target.encode(prompt)
        with generate(target.engine, clients.get(name), ids, sampling, policy) as running:
            for _ in running:
                continue
        reports.append(running.report)
    return reports


def _beside(rates: dict[str, list[float]], way: str) -> float:
    pairs = zip(rates[way], rates[LANGUAGE_MODEL], strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def _passes(reports: list[Report]) -> float:
    return sum(each.tokens for each in reports) / sum(each.rounds for each in reports)
