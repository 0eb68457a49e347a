"""A scene, played: the requests that run through it, and what is wrong with what they come to."""

from __future__ import annotations

from collections import Counter

from draftwire.errors import DraftwireError
from draftwire.session.reasons import DropReason
from draftwire.verifier.emission import Emission
from draftwire.verifier.generate import Generation, generate
from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import WireVersion
from testing.faults.requests import PROMPTS
from testing.faults.scene import Moment, Scene, Told, Watched
from testing.faults.together import play_together
from testing.toys.models import ToyRequest


def play(scene: Scene) -> Told:
    """Run the request (and the one after it); what is wrong is told, nothing raises."""
    told = scene.told
    with scene.exit:
        try:
            _requests(scene)
            scene.client.close()
        except DraftwireError as error:
            told.wrong.append(f"raised {type(error).__name__}: {error}")
        _settle(scene)
    if scene.must_lose is not None and not scene.must_lose.lost:
        told.wrong.append("no line of the log was lost")
    return told


def _requests(scene: Scene) -> None:
    if scene.together > 1:
        play_together(scene)
        return
    if scene.moment is Moment.AGREED:
        _ping(scene)
    if not scene.orphaned:
        _request(scene, seed=1)
    if scene.orphaned:
        scene.client = scene.new_client()
        if scene.moment is not Moment.ENDING:
            _request(scene, seed=1, replaced=True)
    if scene.again or scene.moment is Moment.ENDING:
        _request(scene, seed=2, replaced=True)


def _ping(scene: Scene) -> None:
    try:
        scene.client.ping()
    except DraftwireError:
        return  # a PING may be lost; what counts is what follows


def _request(scene: Scene, seed: int, *, replaced: bool = False) -> None:
    """Run one request. replaced: its verifier has taken the place of one that is gone."""
    size, told = scene.size, scene.told
    greedy = scene.version is WireVersion.V1
    sampling = Sampling(temperature=0.0 if greedy else 1.0, seed=seed, max_tokens=size.tokens)
    words = None if scene.words is None else scene.words(seed)
    run = generate(scene.target, scene.client, PROMPTS[seed], sampling, size.policy, words=words)
    watched = scene.watched = Watched(seed, run.report)
    given_up = False
    while not given_up:
        began, at = scene.world.clock.now, run.report.rounds
        struck, emission = told.struck, next(run, None)
        if run.report.rounds != at:
            told.longest = max(told.longest, scene.world.clock.now - began)
        if emission is None:
            break
        if not told.struck or not struck:  # so far, the struck round included
            watched.drafted_before = run.report.drafted_rounds
        _emitted(scene, watched, emission)
        if len(watched.tokens) == len(run.tokens) and emission.finish is None:
            scene.between(Moment.COMMITTED)
        given_up = told.struck and scene.pinned and seed == 1
        if scene.orphaned and not replaced and not given_up:
            run.close()  # as its process would: nothing more is sent, the line has gone
            return
    _check(scene, run, watched, whole=not (scene.pinned and seed == 1))


def _emitted(scene: Scene, watched: Watched, emission: Emission) -> None:
    told, place = scene.told, len(watched.tokens)
    if emission.index != place:
        told.wrong.append(f"token {place} is numbered {emission.index}")
    if told.struck and not told.resumed and watched.drafted_since:
        told.resumed, told.resumed_at = True, place
    watched.tokens.append(emission.token)


def _check(scene: Scene, run: Generation[ToyRequest], watched: Watched, *, whole: bool) -> None:
    told, tokens = scene.told, watched.tokens
    request = scene.client.opened[-1]
    if whole and len(tokens) != scene.size.tokens:
        told.wrong.append(f"{len(tokens)} tokens of {scene.size.tokens}")
    if tuple(tokens) != tuple(run.tokens)[: len(tokens)]:
        told.wrong.append("what was emitted is not what was committed")
    if request.asking.tokens != (*PROMPTS[watched.seed], *run.tokens):
        told.wrong.append("the session's prefix is not the text")
    run.close()
    report = run.report
    if report.drafted != report.verified + sum(report.discarded.values()):
        told.wrong.append("a draft is in no count")
    if whole:
        told.texts.append(tuple(tokens))
        told.seeds.append(watched.seed)
    told.generations.append(request.asking.generation)
    told.misses.update({reason.value: n for reason, n in report.misses.items()})


def _settle(scene: Scene) -> None:
    client, told, world = scene.client, scene.told, scene.world
    if scene.moment is Moment.TARGET_ONLY:
        told.misses.subtract({"baseline": told.misses["baseline"]})
    told.misses = +told.misses
    drops = Counter({reason.value: n for reason, n in client.counters.drops.items()})
    lost = {r.value for r in DropReason} & set(told.misses)
    told.ignored = drops - Counter({name: told.misses[name] for name in lost})
    told.strays = client.counters.strays
    told.connections = client.counters.connections
    dead = sum(line.dead for line in world.lines)
    if len(world.program.connections) > dead:
        told.wrong.append("the drafter holds a connection that is over")
    if not dead and world.model.contexts:
        told.wrong.append("the drafter holds a session that is over")
    if scene.target.requests:
        told.wrong.append("the target holds a request that is over")
