"""Rows of scores on a device, measured and sampled at once; a few numbers a row on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwire.kernels.protocol import NO_TOKEN, Round, bound_of
from draftwire.kernels.refusals import fits
from draftwire.kernels.rows import QRow
from draftwire.kernels.torch.rounds import Sample, decide
from draftwire.kernels.torch.sampling import lowest
from draftwire.kernels.torch.tensors import Transfer


class DeviceRows:
    """Implements :class:`draftwire.kernels.torch.rounds.Rows` for (R, V) scores on a device."""

    def __init__(
        self,
        scores: Tensor,
        rounds: Sequence[Round],
        measure: Callable[[Tensor, Tensor], Tensor],
        sample: Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor],
        transfer: Transfer,
    ) -> None:
        """Measure every row, each at the draft that is judged there; waits for the device once.

        measure, sample: as in :mod:`draftwire.kernels.torch.sampling`, of any device class.
        """
        self.number, self.size = scores.shape
        self._scores, self._sample, self._transfer = scores, sample, transfer
        self._bound = bound_of(self.size)
        tokens = np.zeros(len(scores), np.int64)
        for each in rounds:
            if not fits(each, self.number):
                continue
            drafts = np.asarray(each.tokens, np.int64)
            # A draft that is no token is refused before its row is looked at.
            tokens[each.first_row : each.first_row + len(drafts)] = drafts.clip(0, self.size - 1)
        columns = measure(scores, transfer.to_device(tokens))
        if any(each.greedy for each in rounds):
            columns = torch.cat([columns, lowest(scores).to(torch.float64)[:, None]], 1)
        self._measured = transfer.to_host(columns).tolist()

    def largest(self, row: int) -> float:
        """The largest score of a row."""
        return float(self._measured[row][0])

    def lowest(self, row: int) -> int:
        """The lowest id with the largest score."""
        return int(self._measured[row][3])

    def accepts(self, row: int, token: int, count: int, first: Callable[[], int]) -> bool | None:
        """Whether a draft stands (A18)."""
        largest, score, mass = self._measured[row][:3]
        return decide(score - largest, count, mass, self._bound, first)

    def sample(self, samples: Sequence[Sample]) -> list[int | None]:
        """The token of each sample (A19, A20); waits for the device once."""
        to_device = self._transfer.to_device
        rows = to_device(np.array([each.row for each in samples], np.int64))
        first = to_device(np.array([each.first for each in samples], np.int64))
        tokens = self._sample(self._scores, rows, self._q(samples), first)
        return [
            None if token == NO_TOKEN else token
            for token in self._transfer.to_host(tokens).tolist()
        ]

    def _q(self, samples: Sequence[Sample]) -> Tensor | None:
        """The q that each sample is drawn against as counts int32 (N, V), 0 where there is none."""
        present = [(at, each.q) for at, each in enumerate(samples) if each.q is not None]
        if not present:
            return None
        shape = (len(samples), self.size)
        dense = torch.zeros(shape, dtype=torch.int32, device=self._scores.device)
        sparse = list[tuple[NDArray[np.int64], QRow]]()
        for at, q in present:
            if q.ids is None:
                dense[at, : q.vocab_size] = self._transfer.to_device(q.counts)
            else:
                sparse.append((q.ids.astype(np.int64) + at * self.size, q))
        if sparse:
            places = self._transfer.to_device(np.concatenate([place for place, _ in sparse]))
            counts = self._transfer.to_device(np.concatenate([q.counts for _, q in sparse]))
            dense.view(-1)[places] = counts
        return dense
