"""The rows of scores and logits that the tokens of a text were taken from."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class EmittedRows:
    """Keeps, round by round, the rows behind each place that was committed; drafts lost are not.

    keep_scores, keep_logits: what is wanted, each a binary32 (width,) a token: the scores after
    every processor, as ``generate`` samples from them, and the model's own logits.
    """

    keep_scores: bool = False
    keep_logits: bool = False
    scores: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    _committed: int = 0
    _last: tuple[torch.Tensor, torch.Tensor] | None = None

    def scored(self, committed: int, scores: torch.Tensor, logits: torch.Tensor) -> None:
        """A round was scored behind so many ids of the text, its drafts in place."""
        if self.keep_scores or self.keep_logits:
            self.settle(committed)
            self._committed, self._last = committed, (scores, logits)

    def settle(self, length: int) -> None:
        """The text has so many ids: what of the last round it was taken from is kept."""
        if self._last is None:
            return
        (scores, logits), self._last = self._last, None
        count = length - self._committed
        if self.keep_scores:
            self.scores += scores[:count].clone().unbind()
        if self.keep_logits:
            self.logits += logits[:count].clone().unbind()
