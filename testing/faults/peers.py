"""Faults of the programs at both ends: killed, stopped, restarted, misconfigured, nonsense."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from draftwire.telemetry.log_handler import logging_to
from draftwire.wire.registry import LayoutSet, WireVersion
from testing.faults.network import LATE, Fault, Variants, everywhere, of_frames
from testing.faults.scene import KEY, UNDER_WAY, Moment, Scene
from testing.faults.world import Arrivals, Way
from testing.toys.models import ToyDrafter, mixed

AWAY: Final = 5.0
STOPPED: Final = 3.0
HOUR: Final = 3600.0
LONG: Final = 170
"""Tokens of a request that lasts until a dead connection is given up."""


def killed(scene: Scene, frame: bytes | None) -> Arrivals:
    """kill -9, and it is started again at once."""
    scene.world.restart()
    return []


def killed_amid(scene: Scene, frame: bytes | None) -> Arrivals:
    """kill -9 when half of the frame has gone."""
    assert frame is not None
    line, half = scene.line, frame[: len(frame) // 2]
    scene.world.restart()
    if line is not None and scene.way is Way.BACK:
        line.put(Way.BACK, scene.world.clock.now, half)
    return []


def killed_after(moment: Moment, version: WireVersion) -> Variants | str:
    """kill -9 when the frame has left whole."""

    def strike(scene: Scene, frame: bytes | None) -> Arrivals:
        assert frame is not None
        line = scene.line
        assert line is not None
        sent = [*line.under_way[Way.BACK], (scene.world.clock.now, frame)]
        scene.world.restart()
        for due, data in sent:
            line.put(Way.BACK, due, data)
        return []

    if UNDER_WAY.get(moment, (Way.THERE,))[0] is not Way.BACK:
        return "the drafter has nothing under way in this state"
    return [("", strike)]


def away(scene: Scene, frame: bytes | None) -> Arrivals:
    """kill -9, and it is away for some seconds."""
    scene.world.restart(AWAY)
    return []


def another(change: Callable[[ToyDrafter], None], scene: Scene) -> Arrivals:
    """Restart the drafter with another model."""
    made = scene.world.engine

    def engine() -> ToyDrafter:
        model = made()
        change(model)
        return model

    scene.world.engine = engine
    scene.world.restart()
    return []


def other_weights(scene: Scene, frame: bytes | None) -> Arrivals:
    """The same tokenizer, another model: it is taken, and only acceptance may suffer."""

    def change(model: ToyDrafter) -> None:
        table = model.table
        # Another q after every context, by halves, so that the law can still be enumerated.
        model.table = lambda context: list(reversed(table(context)))
        model.identity = b"e" * 32

    return another(change, scene)


def other_tokenizer(scene: Scene, frame: bytes | None) -> Arrivals:
    """Another tokenizer: refused for as long as it is there."""

    def change(model: ToyDrafter) -> None:
        model.tokenizer_hash = b"x" * 32

    return another(change, scene)


def other_vocabulary(scene: Scene, frame: bytes | None) -> Arrivals:
    """Another vocabulary: refused for as long as it is there."""

    def change(model: ToyDrafter) -> None:
        model.vocab_size += 1
        model.table = mixed(model.vocab_size, 3)

    return another(change, scene)


def other_key(scene: Scene, frame: bytes | None) -> Arrivals:
    """It is started again with another key than the verifier's (or with one, where none was)."""
    scene.world.key = KEY[::-1] + b"!"
    scene.world.restart()
    return []


def other_version(scene: Scene, frame: bytes | None) -> Arrivals:
    """It is started again with the other wire version."""
    v1 = scene.version is WireVersion.V1
    scene.world.config = replace(
        scene.world.config,
        version=WireVersion.V2 if v1 else WireVersion.V1,
        layouts=LayoutSet.DENSE if v1 else LayoutSet.IDS_ONLY,
    )
    scene.world.restart()
    return []


def half_open(scene: Scene, frame: bytes | None) -> Arrivals:
    """The line loses its other end without a word: what is sent vanishes, nothing comes."""
    line = scene.line
    assert line is not None
    line.dead = True
    return []


def stopped(scene: Scene, frame: bytes | None) -> Arrivals:
    """SIGSTOP, and SIGCONT some seconds later."""
    scene.world.freeze(STOPPED)
    return [] if frame is None else [(STOPPED if scene.way is Way.BACK else 0.0, frame)]


def takes_no_bytes(scene: Scene, frame: bytes | None) -> Arrivals:
    """The drafter reads nothing more: what is sent to it fills every buffer on the way."""
    line = scene.line
    assert line is not None
    line.stuck = True
    if frame is not None and scene.way is Way.THERE:
        scene.world.clock.now += LATE
        raise TimeoutError("the drafter takes no bytes")
    return [] if frame is None else [(0.0, frame)]


def leaves(scene: Scene, frame: bytes | None) -> Arrivals:
    """SIGTERM: it says so, ends, and another one is started."""
    scene.world.leave()
    return []


def verifier_killed(scene: Scene, frame: bytes | None) -> Arrivals:
    """kill -9 of the verifier; another one runs the same request."""
    line = scene.line
    assert line is not None
    scene.orphan()
    scene.world.hang_up(line)
    return []


def clock_ahead(scene: Scene, frame: bytes | None) -> Arrivals:
    """The monotonic clock is an hour further (the machine was suspended)."""
    scene.world.clock.now += HOUR
    scene.told.jumped = HOUR
    return [] if frame is None else [(0.0, frame)]


def wall_clock_back(scene: Scene, frame: bytes | None) -> Arrivals:
    """The wall clock is set a year back: nothing is measured with it."""
    now = time.time
    scene.exit.enter_context(patch.object(time, "time", lambda: now() - 365 * 24 * HOUR))
    return [] if frame is None else [(0.0, frame)]


def full_disk(scene: Scene, frame: bytes | None) -> Arrivals:
    """Every line of the log meets a full disk, and the drafter is killed, which is logged."""
    scene.exit.enter_context(_logging_to_full_disk(scene))
    logging.getLogger("draftwire.verifier").debug("one line that cannot be written")
    return killed(scene, frame)


@contextmanager
def _logging_to_full_disk(scene: Scene) -> Iterator[None]:
    stream = Path("/dev/full").open("w")  # noqa: SIM115  # its close fails as well
    try:
        with logging_to("debug", "json", stream) as scene.must_lose:
            yield
    finally:
        with suppress(OSError):
            stream.close()


def model_fails(moment: Moment, version: WireVersion) -> Variants | str:
    return _once(moment, lambda *_: _raise())


def model_has_no_row(moment: Moment, version: WireVersion) -> Variants | str:
    return _once(moment, lambda logits: np.full_like(logits, np.nan))


def _raise() -> NDArray[np.float32]:
    raise RuntimeError("the model fails")


def _once(
    moment: Moment, damage: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> Variants | str:
    """The model's next pass goes wrong, once or (a failed batch is tried alone) twice."""
    if moment not in (Moment.OPENING, Moment.ASKED):
        return "the model is not asked in this state"

    def strike(scene: Scene, frame: bytes | None) -> Arrivals:
        assert frame is not None
        model = scene.world.model
        forward = model.forward

        def once(batch: object) -> NDArray[np.float32]:
            model.forward = forward  # type: ignore[method-assign]
            return damage(forward(batch))  # type: ignore[arg-type]

        model.forward = once  # type: ignore[method-assign]
        return [(0.0, frame)]

    return [("", strike)]


# others


def neighbours_vanish(scene: Scene, frame: bytes | None) -> Arrivals:
    """Another verifier runs a request at the same drafter, and is gone in the middle of it."""
    scene.neighbour()
    return [] if frame is None else [(0.0, frame)]


FAULTS: Final = (
    Fault("drafter killed -9, restarted", everywhere(killed)),
    Fault("drafter killed -9 amid a frame", of_frames(killed_amid)),
    Fault("drafter killed -9 after a frame", killed_after),
    Fault("drafter killed -9, away 5 s", everywhere(away), tokens=80),
    Fault("drafter restarted, another model", everywhere(other_weights), same_q=False),
    Fault("drafter restarted, another tokenizer", everywhere(other_tokenizer)),
    Fault("drafter restarted, another vocabulary", everywhere(other_vocabulary)),
    Fault("drafter restarted, key wrong", everywhere(other_key)),
    Fault("drafter restarted, another version", everywhere(other_version)),
    Fault("drafter stopped 3 s", everywhere(stopped), tokens=80),
    Fault("drafter takes no bytes", everywhere(takes_no_bytes)),
    Fault("drafter leaves (SIGTERM)", everywhere(leaves)),
    Fault("half-open TCP", everywhere(half_open), tokens=LONG),
    Fault("verifier killed -9", everywhere(verifier_killed)),
    Fault("clock jumps an hour ahead", everywhere(clock_ahead)),
    Fault("wall clock jumps a year back", everywhere(wall_clock_back)),
    Fault("disk full for logs, drafter killed", everywhere(full_disk)),
    Fault("model raises", model_fails),
    Fault("model has no row", model_has_no_row),
    Fault("another verifier vanishes", everywhere(neighbours_vanish)),
)
"""Rows of the matrix that programs make."""
