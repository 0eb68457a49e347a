"""Python calls of one steady round without models, on each side: ``-m benchmarks.round_calls``.

A count does not depend on the machine, so it shows what a change costs where a time does not. Both
sides run in this process over the channel of :class:`~draftwire.verifier.local.LocalDrafter`, whose
own calls are not counted; sockets and the drafter's selector are no part of it. Calls are those of
functions of the package that the interpreter runs; compiled loops are not among them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import draftwire
from benchmarks.loopback import CONTEXT, POLICY, VOCABULARY, Rounds, prepared_logits
from benchmarks.prepared_rows import PreparedEngine, PreparedProposals
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.transport.channel import Channel, Part
from draftwire.verifier.local import LocalDrafter
from testing.toys.models import ToyTarget, constant

VERIFIER, DRAFTER = "verifier", "drafter"
WARM_UP = 50  # rounds
PACKAGE = str(Path(draftwire.__file__).parent)
CHANNEL = str(Path(PACKAGE, "verifier", "local.py"))


class Calls:
    """Counts calls by side; the drafter's are those inside its channel."""

    def __init__(self) -> None:
        self.by_side: dict[str, Counter[tuple[str, str]]] = {
            VERIFIER: Counter(),
            DRAFTER: Counter(),
        }
        self.side = VERIFIER

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Count a call; what ``sys.setprofile`` takes."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_filename != CHANNEL:
            file = code.co_filename.removeprefix(PACKAGE)
            self.by_side[self.side][file, code.co_qualname] += 1

    def watched(self, channel: Channel) -> Channel:
        """Return the channel, inside which the drafter's calls are counted."""
        return _Watched(channel, self)


class _Watched:
    def __init__(self, channel: Channel, calls: Calls) -> None:
        self._channel = channel
        self._calls = calls

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        self._calls.side = DRAFTER
        self._channel.send([b"".join(parts)], deadline)
        self._calls.side = VERIFIER

    def receive_into(self, buffer: memoryview, deadline: float) -> int:
        self._calls.side = DRAFTER
        count = self._channel.receive_into(buffer, deadline)
        self._calls.side = VERIFIER
        return count

    def close(self) -> None:
        self._channel.close()


def count_round() -> Calls:
    """Return the calls of one round after ``WARM_UP`` others."""
    calls = Calls()
    logits = prepared_logits()
    program = DrafterProgram(
        PreparedEngine(logits, CONTEXT),
        DrafterConfig(),
        proposer=PreparedProposals(logits, {POLICY.layout: POLICY}),
    )
    with LocalDrafter(
        program, ToyTarget(constant(1.0), VOCABULARY, CONTEXT), through=calls.watched
    ) as local:
        rounds = Rounds(local)
        for _ in range(WARM_UP):
            rounds()
        sys.setprofile(calls)
        try:
            rounds()
        finally:
            sys.setprofile(None)
    return calls


def main() -> None:
    """Print the table, and with ``--all`` every function."""
    calls = count_round()
    print("| side | calls | files entered |")
    print("|---|---:|---:|")
    for side, counted in calls.by_side.items():
        print(f"| {side} | {counted.total()} | {len({file for file, _ in counted})} |")
    if "--all" in sys.argv:
        for side, counted in calls.by_side.items():
            for (file, name), count in sorted(counted.items()):
                print(f"{side:9}{count:4}  {file}: {name}")


if __name__ == "__main__":
    main()
