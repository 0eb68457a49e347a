"""Never slower than plain, for an engine whose steps decode many requests at once.

A round, to the breaker, is a step: the wait for its drafts, the pass of the target and the judging
of all rows. What it costs depends on how many requests decode in it, so steps of each class of
sizes have a circuit of their own: 1, 2 to 3, 4 to 7, and so on. The wait is one for all rows of a
step; what the pass takes longer with drafts is each row's own, and what drafts bring it as well. So
a row whose drafts are never accepted goes without them while the others go on.

Admission is decided between steps, when every row has been judged and none of the next round is
drawn, from times and tokens of finished steps alone. So the argument of
:mod:`draftwire.verifier.breaker` holds for each request, and for all of them together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from draftwire.verifier.breaker import Breaker, BreakerConfig, Choice, Gain, RequestBreaker
from draftwire.verifier.log import breaker_changed


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the next step of ``size`` requests was decided to be, for those that could be drafted.

    waited: seconds that its drafts have taken.
    """

    choices: Mapping[RequestBreaker, Choice]
    size: int
    waited: float = 0.0


class BatchBreaker:
    """Decides step by step which rows drafts are asked for.

    clock: seconds, monotonic. Call :meth:`admits` and :meth:`asked` at the end of a step,
    :meth:`began` and :meth:`ended` around the next one.
    """

    def __init__(
        self, config: BreakerConfig | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin with nothing measured."""
        self._breaker = Breaker(config)
        self._clock = clock
        self._admitted: Admitted | None = None
        self._began: float | None = None

    @property
    def paused_requests(self) -> int:
        """Requests that are paused because drafting does not pay for them."""
        return self._breaker.paused_requests

    def open(self) -> RequestBreaker:
        """Begin a request; close what this returns when it has ended."""
        return self._breaker.open()

    def admits(self, requests: Sequence[RequestBreaker], size: int) -> list[Choice]:
        """Return what the next step, of ``size`` requests, is to be for those that may be drafted.

        requests: at least one, none of them with a seed that is to repeat its text.
        """
        choices = self._breaker.admits(requests, size)
        self._admitted = Admitted(dict(zip(requests, choices, strict=True)), size)
        return choices

    def asked(self, seconds: float, *, mixed: bool) -> None:
        """Drafts were asked for; ``mixed``: in a step that was to have none, which says nothing."""
        if self._admitted is not None:
            self._admitted = None if mixed else replace(self._admitted, waited=seconds)

    def began(self, *, comparable: bool) -> None:
        """A step begins; ``comparable``: it reads no prompts."""
        self._began = self._clock() if comparable else None

    def ended(self, gains: Mapping[RequestBreaker, Gain]) -> None:
        """All rows of the step are judged; gains: what it has brought each request."""
        admitted, began = self._admitted, self._began
        self._admitted = self._began = None
        if admitted is None or began is None:
            return
        if len(gains) != admitted.size or not admitted.choices.keys() <= gains.keys():
            return
        seconds = admitted.waited + self._clock() - began
        changed = self._breaker.finished(
            list(gains),
            [
                admitted.choices.get(each, Choice.DRAFT if gain.came else Choice.SAMPLE)
                for each, gain in gains.items()
            ],
            list(gains.values()),
            seconds,
            waited=admitted.waited,
        )
        breaker_changed(changed)
