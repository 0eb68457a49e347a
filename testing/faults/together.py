"""Requests whose rounds are asked together: each loses its own proposal to a fault, and no other's.

Every round of all of them is asked in one ``propose_all``, as an engine does that runs a batch. The
fault strikes one of the frames of such a round, or between two of its verifications.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from draftwire.verifier.client import ClientRequest
from draftwire.verifier.context import context_version, sampling_settings
from draftwire.verifier.generate import Generation, generate
from draftwire.verifier.miss import Drafted
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import WireVersion
from testing.faults.requests import PROMPTS
from testing.faults.scene import PASS, Moment, Scene
from testing.toys.models import ToyRequest

MOMENTS: Final = (
    Moment.OPENING,
    Moment.ASKED,
    Moment.REPLYING,
    Moment.REPLIED,
    Moment.PROPOSED,
    Moment.COMMITTED,
)
"""The states in which several requests have something to lose at once."""


@dataclass
class Member:
    """One of the requests that are asked together."""

    seed: int
    run: Generation[ToyRequest]
    request: ClientRequest
    tokens: list[int] = field(default_factory=list)
    drafted: Drafted | None = None  # for its next round, asked already
    asked: ProposalPolicy | None = None
    drafted_before: int = 0  # its drafted rounds up to the struck one
    struck_at: int = 0  # tokens that it had when the fault struck
    resumed_at: int | None = None  # and that it had when it was first drafted again

    @property
    def report(self) -> Report:
        """What has become of it."""
        return self.run.report

    @property
    def misses(self) -> Counter[str]:
        """What it has lost, by reason."""
        return Counter({reason.value: n for reason, n in self.report.misses.items()})

    def propose(self, policy: ProposalPolicy) -> Drafted:
        """In the place of the request's own ``propose``: what was asked for with the others."""
        drafted, self.drafted = self.drafted, None
        assert drafted is not None
        assert policy == self.asked
        return drafted


def play_together(scene: Scene) -> list[Member]:
    """Run the requests to their ends, a round of each at a time; what is wrong is told."""
    members = [_member(scene, seed) for seed in range(1, scene.together + 1)]
    live = members.copy()
    while live:
        struck, began = scene.told.struck, scene.world.clock.now
        places = {member.seed: len(member.tokens) for member in live}
        _ask(scene, live)
        for member in live:
            _round(scene, member)
        passes = PASS * (len(live) - 1)
        scene.told.longest = max(scene.told.longest, scene.world.clock.now - began - passes)
        for member in live:
            if not struck:  # so far, the struck round included
                member.drafted_before = member.report.drafted_rounds
                member.struck_at = places[member.seed]
            elif member.resumed_at is None and member.report.drafted_rounds > member.drafted_before:
                member.resumed_at = places[member.seed]
        live = [member for member in live if member.report.finish is None]
    for member in members:
        _check(scene, member)
    told = scene.told
    told.resumed = all(member.resumed_at is not None for member in members)
    told.apart = [member.misses for member in members]
    told.places = {each.seed: (each.struck_at, each.resumed_at) for each in members}
    return members


def _member(scene: Scene, seed: int) -> Member:
    size = scene.size
    greedy = scene.version is WireVersion.V1
    sampling = Sampling(temperature=0.0 if greedy else 1.0, seed=seed, max_tokens=size.tokens)
    words = None if scene.words is None else scene.words(seed)
    run = generate(scene.target, scene.client, PROMPTS[seed], sampling, size.policy, words=words)
    member = Member(seed, run, scene.client.opened[-1])
    settings = sampling_settings(sampling, scene.target.end_tokens)
    member.request.use_context(context_version(sampling.request_key(), settings))
    member.request.propose = member.propose  # type: ignore[method-assign]
    return member


def _ask(scene: Scene, live: list[Member]) -> None:
    """Ask for the next round of all; a request with one token left asks for nothing (A23)."""
    policy, asked = scene.size.policy, []
    for member in live:
        depth = min(policy.depth, scene.size.tokens - len(member.tokens) - 1)
        member.asked = replace(policy, depth=depth) if 0 < depth < policy.depth else policy
        if depth:
            asked.append((member, member.asked))
    results = scene.client.propose_all([(member.request, its) for member, its in asked])
    for (member, _), result in zip(asked, results, strict=True):
        member.drafted = result


def _round(scene: Scene, member: Member) -> None:
    """Verify and commit what was drafted, and take all tokens of it."""
    while True:
        emission = next(member.run)
        if emission.index != len(member.tokens):
            scene.told.wrong.append(f"token {len(member.tokens)} is numbered {emission.index}")
        member.tokens.append(emission.token)
        if len(member.tokens) == len(member.run.tokens):
            break
    scene.between(Moment.COMMITTED)


def _check(scene: Scene, member: Member) -> None:
    told, run, name = scene.told, member.run, f"request {member.seed}"
    if len(member.tokens) != scene.size.tokens or member.tokens != list(run.tokens):
        told.wrong.append(f"{name}: {len(member.tokens)} tokens of {scene.size.tokens}")
    if member.request.asking.tokens != (*PROMPTS[member.seed], *run.tokens):
        told.wrong.append(f"{name}: the session's prefix is not the text")
    run.close()
    report = run.report
    if report.drafted != report.verified + sum(report.discarded.values()):
        told.wrong.append(f"{name}: a draft is in no count")
    told.texts.append(tuple(member.tokens))
    told.seeds.append(member.seed)
    told.generations.append(member.request.asking.generation)
    told.misses.update(member.misses)
