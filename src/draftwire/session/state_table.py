"""State machines as data: one table of states and inputs, and what follows from each pair.

The session, the link, the handshake and the slots each have one. A pair that is missing may not
happen; the owner of the machine says what that means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from draftwire.errors import ProtocolError, ProtocolErrorCode

S = TypeVar("S", bound=StrEnum)
I = TypeVar("I", bound=StrEnum)  # noqa: E741


class StateTable(Generic[S, I]):
    """One machine. transitions: a row for every state; the value of a member is its meaning."""

    def __init__(
        self, states: type[S], inputs: type[I], transitions: Mapping[S, Mapping[I, S]]
    ) -> None:
        self.states = tuple(states)
        self.inputs = tuple(inputs)
        self.transitions = {state: dict(transitions[state]) for state in self.states}

    def following(self, state: S, happened: I) -> S | None:
        """Return the state that follows; None = this may not happen now."""
        return self.transitions[state].get(happened)

    def advance(self, state: S, happened: I) -> S:
        """Return the state that follows; ProtocolError UNEXPECTED_MESSAGE if there is none."""
        following = self.transitions[state].get(happened)
        if following is None:
            raise ProtocolError(
                ProtocolErrorCode.UNEXPECTED_MESSAGE,
                f"{happened.name} may not come in state {state.name} ({state.value})",
            )
        return following

    def product(self) -> Iterator[tuple[S, I, S | None]]:
        """Yield every state with every input and what follows, for exhaustive tests."""
        for state in self.states:
            for happened in self.inputs:
                yield state, happened, self.transitions[state].get(happened)

    def markdown(self) -> str:
        """Return the table for the specification: states, inputs, and their whole product."""
        lines = ["| state | meaning |", "|---|---|"]
        lines += [f"| {state.name} | {state.value} |" for state in self.states]
        lines += ["", "| input | meaning |", "|---|---|"]
        lines += [f"| {happened.name} | {happened.value} |" for happened in self.inputs]
        lines += ["", "| input | " + " | ".join(state.name for state in self.states) + " |"]
        lines.append("|---" * (len(self.states) + 1) + "|")
        for happened in self.inputs:
            following = (self.transitions[state].get(happened) for state in self.states)
            cells = (state.name if state else "error" for state in following)
            lines.append(f"| {happened.name} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"
