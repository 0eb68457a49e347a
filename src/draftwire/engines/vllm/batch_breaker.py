"""Never slower than plain, for an engine whose steps decode many requests at once.

What a step costs depends on how many requests decode in it, so there is one breaker for each class
of sizes: 1, 2 to 3, 4 to 7, and so on. A round, to a breaker, is a step: the wait for its drafts,
the pass of the target and the judging of all rows; its tokens are the mean over the rows.

Admission is decided between steps, when every row has been judged and none of the next round is
drawn, from times of finished steps alone. So the argument of :mod:`draftwire.verifier.breaker`
holds for each request, and for all of them together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from draftwire.verifier.breaker import Breaker, BreakerConfig, Choice
from draftwire.verifier.log import breaker_changed


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the next step was decided to be. waited: seconds that its drafts have taken."""

    breaker: Breaker
    choice: Choice
    rows: int
    waited: float = 0.0


class BatchBreaker:
    """Decides step by step whether drafts are asked for.

    clock: seconds, monotonic. Call :meth:`admits` and :meth:`asked` at the end of a step,
    :meth:`began` and :meth:`ended` around the next one.
    """

    def __init__(
        self, config: BreakerConfig | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin with nothing measured."""
        self._config = config
        self._clock = clock
        self._breakers: dict[int, Breaker] = {}
        self._admitted: Admitted | None = None
        self._began: float | None = None

    def admits(self, rows: int) -> Choice:
        """Return what the next step of ``rows`` requests is to be."""
        size = rows.bit_length()
        breaker = self._breakers.setdefault(size, Breaker(self._config))
        self._admitted = Admitted(breaker, breaker.admits(), rows)
        return self._admitted.choice

    def asked(self, seconds: float, *, mixed: bool) -> None:
        """Drafts were asked for; ``mixed``: for some rows only, so the step says nothing."""
        admitted = self._admitted
        if admitted is not None:
            self._admitted = (
                None
                if mixed
                else Admitted(admitted.breaker, admitted.choice, admitted.rows, seconds)
            )

    def began(self, *, comparable: bool) -> None:
        """A step begins; ``comparable``: it reads no prompts."""
        self._began = self._clock() if comparable else None

    def ended(self, rows: int, tokens: int) -> None:
        """All rows of the step are judged: ``tokens`` were emitted for ``rows`` requests."""
        admitted, began = self._admitted, self._began
        self._admitted = self._began = None
        if admitted is None or began is None or rows != admitted.rows:
            return
        seconds = admitted.waited + self._clock() - began
        if admitted.breaker.finished(admitted.choice, seconds, tokens / rows, first=False):
            breaker_changed(admitted.breaker)
