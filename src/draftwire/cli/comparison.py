"""One pair of models run three ways in turn: drafter remote, drafter here, no drafter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftwire.cli.drafters import local_drafter, remote_drafter
from draftwire.cli.models import Target
from draftwire.cli.options import LayoutChoice
from draftwire.cli.output import Notes
from draftwire.cli.process import drafter_process
from draftwire.verifier.generate import generate
from draftwire.verifier.sampling import SEED_LIMIT, Sampling
from draftwire.wire.messages import ProposalPolicy

if TYPE_CHECKING:
    from draftwire.transport.tcp import Address
    from draftwire.verifier.drafter import Drafter
    from draftwire.verifier.report import Report

REMOTE, COLOCATED, TARGET_ONLY = "remote", "colocated", "target-only"
DEADLINE_SECONDS = 5.0  # nothing here measures a missed deadline


@dataclass(frozen=True)
class Trio:
    """A target, and the three places that its drafts may come from."""

    target: Target
    address: Address
    drafters: dict[str, Drafter | None]
    kernels: str = "auto"


def policy_for(choice: LayoutChoice, depth: int, temperature: float) -> ProposalPolicy:
    """Return a policy without restrictions of its own."""
    return ProposalPolicy(choice.layout, depth, temperature, support=choice.support)


@contextmanager
def trio(
    target: Path | None,
    drafter: Path | None,
    policy: ProposalPolicy,
    *,
    threads: int,
    kernels: str = "auto",
    shared: bool = False,
    early_stop: bool = False,
) -> Iterator[Trio]:
    """Load the target here and the drafter twice: in a process of its own, and in this one.

    shared: it drafts on the ids that it shares with the target. early_stop: it may admit fewer
    drafts than the policy's depth.
    """
    arguments = ["--threads", str(threads), "--max-depth", str(policy.depth)]
    arguments += ["--max-support", str(max(1, policy.support)), "--log-level", "warning"]
    arguments += ["--kernels", kernels]
    if drafter is not None:
        arguments += ["--model", str(drafter)]
    with ExitStack() as stack:
        loaded = Target(target, device="cpu", threads=threads)
        if shared:
            arguments += ["--vocabulary", "shared", "--target-tokenizer", str(loaded.folder)]
            arguments += ["--vocab-size", str(loaded.engine.vocab_size)]
        address = stack.enter_context(drafter_process(arguments))
        # The one in this process first: where they are no pair, it has both tokenizers to say why.
        local = stack.enter_context(
            local_drafter(drafter, loaded, policy, kernels, shared=shared, early_stop=early_stop)
        )
        remote = remote_drafter(
            address, loaded, policy, Notes(), deadline=DEADLINE_SECONDS, early_stop=early_stop
        )
        stack.enter_context(remote)
        yield Trio(loaded, address, {REMOTE: remote, COLOCATED: local, TARGET_ONLY: None}, kernels)


def compare(
    pair: Trio,
    prompt: Sequence[int],
    sampling: Sampling,
    policy: ProposalPolicy,
    repeats: int,
    done: Callable[[], object] = lambda: None,
) -> dict[str, list[Report]]:
    """Generate ``repeats`` times each way, turn by turn, a seed a turn; one warm-up each first."""
    reports: dict[str, list[Report]] = {way: [] for way in pair.drafters}
    short = replace(sampling, max_tokens=min(8, sampling.max_tokens))
    for way in pair.drafters:
        _run(pair, way, prompt, short, policy)
        done()
    for turn in range(repeats):
        seeded = replace(sampling, seed=((sampling.seed or 0) + turn) % SEED_LIMIT)
        for way in pair.drafters:
            reports[way].append(_run(pair, way, prompt, seeded, policy))
            done()
    return reports


def _run(
    pair: Trio, way: str, prompt: Sequence[int], sampling: Sampling, policy: ProposalPolicy
) -> Report:
    engine = pair.target.engine
    with generate(
        engine, pair.drafters[way], prompt, sampling, policy, kernels=pair.kernels
    ) as running:
        for _ in running:
            continue
    return running.report


def rates_of(reports: dict[str, list[Report]]) -> dict[str, list[float]]:
    """Return tokens/s of every run, by way."""
    return {way: [report.tokens_per_second for report in runs] for way, runs in reports.items()}
