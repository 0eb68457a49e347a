"""Measures a drafter and a target together: round trip, passes, drafting, bytes, acceptance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

from draftwire.errors import ConfigurationError, DrafterUnavailableError
from draftwire.verifier.client import DraftClient
from draftwire.verifier.engine import TargetEngine
from draftwire.verifier.estimate import Measured
from draftwire.verifier.generate import generate
from draftwire.verifier.miss import Miss
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.agreement import reply_bytes
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, Outcome

PINGS: Final = 15
REPEATS: Final = 5
_LEAST: Final = 3
_TEXTS: Final = 16
_KEY: Final = 1  # of the proposals that are only timed


def round_trip(client: DraftClient, pings: int = PINGS) -> float:
    """Return the median seconds of a PING; raises as ``DraftClient.ping`` does."""
    return median(client.ping() for _ in range(pings))


def target_seconds(
    target: TargetEngine[Any], prompt: Sequence[int], sampling: Sampling, kernels: str = "auto"
) -> float:
    """Return the median seconds of a round of the target alone, the prompt's own left out.

    Makes texts with one seed after another until there are enough tokens; raises
    ConfigurationError when they all end at once.
    """
    steps: list[float] = []
    for each in _samplings(sampling):
        with generate(target, None, prompt, each, kernels=kernels) as running:
            moments = [time.perf_counter() for _ in running]
        steps += [after - before for before, after in pairwise(moments)]
        if len(steps) >= sampling.max_tokens // 2:
            break
    if len(steps) < _LEAST:
        raise ConfigurationError(
            "every text ends at once, so nothing can be timed: choose another prompt"
        )
    return median(steps)


def texts(
    target: TargetEngine[Any],
    client: DraftClient,
    prompt: Sequence[int],
    sampling: Sampling,
    policy: ProposalPolicy,
    kernels: str = "auto",
) -> tuple[Report, float]:
    """Make texts with drafts, one seed after another, until there are enough tokens.

    Returns what they have come to, and the mean seconds of a target pass with its verification,
    the passes over the prompts left out.
    """
    total, seconds, passes = Report(), 0.0, 0
    for each in _samplings(sampling):
        with generate(target, client, prompt, each, policy, kernels=kernels) as running:
            report = running.report
            next(running)
            seconds -= report.seconds.target + report.seconds.verify
            for _ in running:
                continue
        seconds += report.seconds.target + report.seconds.verify
        passes += report.rounds - 1
        total.add(report)
        if total.tokens >= sampling.max_tokens:
            break
    return total, seconds / max(passes, 1)


def _samplings(sampling: Sampling) -> Iterator[Sampling]:
    """Yield the same sampling with one seed after another."""
    for text in range(_TEXTS):
        yield replace(sampling, seed=(sampling.seed or 0) + text)


def proposal_seconds(
    client: DraftClient,
    prompt: Sequence[int],
    policies: Sequence[ProposalPolicy],
    repeats: int = REPEATS,
) -> list[float]:
    """Return the median seconds of a proposal under each policy, asked in turn, all accepted.

    The audit is part of it, as it is of every round. Raises DrafterUnavailableError when one is
    lost.
    """
    request = client.open(prompt, _KEY)
    times: list[list[float]] = [[] for _ in policies]
    try:
        for repeat in range(repeats + 1):  # the first reads the prompt and is not counted
            for policy, taken in zip(policies, times, strict=True):
                began = time.perf_counter()
                drafted = request.propose(policy)
                seconds = time.perf_counter() - began
                if isinstance(drafted, Miss):
                    raise DrafterUnavailableError(
                        drafted.reason.value,
                        f"a proposal was lost while it was timed ({drafted.reason.value}"
                        f"{': ' + drafted.detail if drafted.detail else ''})",
                    )
                request.commit(
                    Outcome.BONUS, len(drafted.tokens), [*drafted.tokens, drafted.tokens[0]]
                )
                if repeat:
                    taken.append(seconds)
    finally:
        request.close()
    return [median(taken) for taken in times]


def measure(
    target: TargetEngine[Any],
    client: DraftClient,
    prompt: Sequence[int],
    sampling: Sampling,
    policy: ProposalPolicy,
    *,
    dense: bool,
    step: Callable[[], object] = lambda: None,
    kernels: str = "auto",
) -> Measured:
    """Measure everything that an estimate needs; a text with drafts and one without are made.

    policy: what acceptance is measured with. dense: whether the drafter offers that layout, so that
    bytes can be timed by a reply of the same drafts that is many times as large; otherwise they
    count as free. step: called after each part. kernels: what judges. Raises TransportError,
    DrafterUnavailableError, ConfigurationError.
    """
    ping = round_trip(client)
    step()
    alone = target_seconds(target, prompt, sampling, kernels)
    step()
    vocab, depth = target.vocab_size, policy.depth
    one = ProposalPolicy(policy.layout, 1, policy.temperature, support=policy.support)
    whole = ProposalPolicy(Layout.DENSE, depth, policy.temperature)
    asked = [one, policy, *([whole] if dense else [])]
    shallow, deep, *large = proposal_seconds(client, prompt, asked)
    step()
    small = reply_bytes(policy.layout, vocab, depth, policy.support)
    more = reply_bytes(Layout.DENSE, vocab, depth, 0) - small
    byte = max((large[0] - deep) / more, 0.0) if large and more > 0 else 0.0
    draft = max(deep - shallow, 0.0) / (depth - 1) if depth > 1 else max(shallow - ping, 0.0)
    fixed = max(deep - depth * draft - small * byte, ping)
    report, pass_seconds = texts(target, client, prompt, sampling, policy, kernels)
    step()
    proposed, accepted = report.proposed_by_position, report.accepted_by_position
    shares = [a / p if p else 0.0 for a, p in zip(accepted, proposed, strict=True)]
    return Measured(
        target=alone,
        target_deep=max(pass_seconds, alone),
        draft=draft,
        fixed=fixed,
        byte=byte,
        round_trip=ping,
        depth=depth,
        accepted=tuple(shares),
    )
