"""A toy matcher of a grammar with the interface of xgrammar's, and a processor like its own."""

from __future__ import annotations

from typing import Any, Self

import torch
from transformers import LogitsProcessor

END = 1
OPEN, CLOSE, LETTERS = 4, 5, (6, 7)


class Matcher:
    """Follows ``(a|b)* CLOSE`` after each OPEN, nested up to twice, then END; refuses all else."""

    def __init__(self) -> None:
        self.depth = 0
        self.begun = False
        self.ended = False
        self.accepted: list[int] = []

    def __deepcopy__(self, memo: Any) -> Self:
        raise TypeError("a handle of another language cannot be copied")

    def fork(self) -> Matcher:
        """As xgrammar's GrammarMatcher.fork."""
        other = Matcher()
        other.depth, other.begun, other.ended = self.depth, self.begun, self.ended
        other.accepted = list(self.accepted)
        return other

    def allowed(self) -> set[int]:
        """The ids that may stand next."""
        if self.ended:
            return set()
        if not self.begun:
            return {OPEN}
        if not self.depth:
            return {END}
        return {CLOSE, *LETTERS} | ({OPEN} if self.depth < 2 else set())

    def accept_token(self, token: int) -> bool:
        """Take the next id; False where it is not allowed."""
        if token not in self.allowed():
            return False
        self.accepted.append(token)
        self.begun = True
        self.depth += (token == OPEN) - (token == CLOSE)
        self.ended = token == END
        return True


class GrammarProcessor(LogitsProcessor):
    """As ``xgrammar.contrib.hf.LogitsProcessor``: takes the newest id, then masks."""

    def __init__(self) -> None:
        self.matchers: list[Matcher] = []
        self.prefilled = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.matchers:
            self.matchers = [Matcher() for _ in input_ids]
        assert len(input_ids) == len(self.matchers)
        if self.prefilled:
            for matcher, ids in zip(self.matchers, input_ids, strict=True):
                if not matcher.ended:
                    assert matcher.accept_token(int(ids[-1])), "an id that is not allowed"
        self.prefilled = True
        for matcher, row in zip(self.matchers, scores, strict=True):
            if not matcher.ended:
                row[[id not in matcher.allowed() for id in range(len(row))]] = -torch.inf
        return scores


def is_valid(text: list[int]) -> bool:
    """Whether a whole text, its end included, is of the grammar."""
    matcher = Matcher()
    return all(map(matcher.accept_token, text)) and matcher.ended
