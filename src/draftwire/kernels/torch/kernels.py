"""The ``torch`` kernels: on any device with binary64 that torch has, the CPU included."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwire.kernels.adjustments import Adjustment, Kept, Scaled, steps_of
from draftwire.kernels.prepare import run_through
from draftwire.kernels.protocol import OK, QRows, Round, Verdict
from draftwire.kernels.refusals import check_policy
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.rows import QRow
from draftwire.kernels.torch import quantise as torch_quantise
from draftwire.kernels.torch import sampling
from draftwire.kernels.torch.device_rows import DeviceRows
from draftwire.kernels.torch.host_rows import HostRows, Look
from draftwire.kernels.torch.rounds import verdicts
from draftwire.kernels.torch.tensors import Transfer, check_rows, tensor_of
from draftwire.kernels.words import prepare
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import PAD_ID


@dataclass(frozen=True, slots=True)
class Operations:
    """What a device class computes of (N, V) rows of tensors; see the torch modules for each."""

    quantise: Callable[[Tensor, ProposalPolicy], tuple[QRows[Tensor], Tensor]]
    draw: Callable[[QRows[Tensor], Tensor], Tensor]
    measure: Callable[[Tensor, Tensor], Tensor]
    sample: Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]


class TensorKernels:
    """Implements :class:`draftwire.kernels.protocol.Kernels` by the operations of a device class.

    Arrays of the host are taken as tensors of the CPU. transfer: counts what crosses to the host.
    """

    def __init__(self, name: str, device: str, operations: Operations) -> None:
        """Compute on ``device``. Errors: ConfigurationError for one that is not there."""
        self.name = name
        self.transfer = Transfer(device)
        self._operations = operations
        prepare()

    def prepare(self, policies: Sequence[ProposalPolicy], width: int) -> None:
        """Run every operation once at the shapes of a round."""
        run_through(self, policies, width)

    def from_host(self, array: NDArray[Any]) -> Tensor:
        """A tensor of the array's values on the device."""
        return self.transfer.to_device(array)

    def host_row(self, scores: Any, row: int) -> NDArray[Any]:
        """One row of scores on the host; waits for the device."""
        return self.transfer.to_host(tensor_of(scores)[row])

    def adjust(self, logits: Any, adjustments: Sequence[Sequence[Adjustment]]) -> Tensor:
        """New rows, adjusted where they lie (A30): ids and values alone come from the host."""
        given = tensor_of(logits)
        check_rows(given)
        rows = torch.empty(given.shape, dtype=torch.float32, device=given.device).copy_(given)
        flat = rows.view(-1)
        for step in steps_of(adjustments, rows.shape[1]):
            places = torch.from_numpy(step.places).to(rows.device)
            values = torch.from_numpy(step.values).to(rows.device)
            z = flat[places]
            if step.kind is Scaled:
                z = torch.where(z > 0, z / values, z * values)
            elif step.kind is Kept:
                rows[step.rows] += -torch.inf
            else:
                z += values
            flat[places] = z
        return rows

    def quantise(self, logits: Any, policy: ProposalPolicy) -> tuple[QRows[Tensor], Tensor]:
        """q of (N, V) logits, where they lie, and the status int32 (N,) (A1-A10)."""
        rows = tensor_of(logits)
        check_rows(rows)
        check_policy(policy)
        q, status = self._operations.quantise(rows, policy)
        q.counts.masked_fill_((status != OK)[:, None], 0)  # so that nothing is drawn from them
        return q, status

    def draw(self, q: QRows[Tensor], uniform24: NDArray[Any]) -> NDArray[Any]:
        """The token of each row, int64 (N,) on the host (A16)."""
        return self.transfer.to_host(self._operations.draw(q, self.transfer.to_device(uniform24)))

    def host_rows(self, q: QRows[Tensor]) -> list[QRow]:
        """The rows as they go on the wire, on the host."""
        counts = self.transfer.to_host(q.counts)
        if q.ids is None:
            return [QRow(q.vocab_size, None, row.copy()) for row in counts]
        ids = self.transfer.to_host(q.ids)
        used = np.maximum(np.count_nonzero(ids != PAD_ID, axis=1), 1).tolist()
        return [
            QRow(q.vocab_size, ids[at, :end].copy(), counts[at, :end].copy())
            for at, end in enumerate(used)
        ]

    def verify(self, scores: Any, rounds: Sequence[Round]) -> list[Verdict]:
        """Judge the rounds of B requests; waits for the device twice, for a few numbers a row."""
        rows = tensor_of(scores)
        if rows.dtype is torch.float64:  # weights: of an engine that makes p itself, on the host
            return kernels_for("cpu", "cpu").verify(self.transfer.to_host(rows), rounds)
        check_rows(rows)
        return self._verdicts(rows, rounds) if rounds else []

    def _verdicts(self, scores: Tensor, rounds: Sequence[Round]) -> list[Verdict]:
        operations = self._operations
        rows = DeviceRows(scores, rounds, operations.measure, operations.sample, self.transfer)
        return verdicts(rows, rounds)


TORCH = Operations(torch_quantise.quantise, sampling.draw, sampling.measure, sampling.sample)


class TorchKernels(TensorKernels):
    """The kernels of torch's own operations.

    by_row: judge row after row, as on a CPU unless told otherwise; see
    :mod:`draftwire.kernels.torch.host_rows`.
    """

    def __init__(self, device: str = "cpu", *, by_row: bool | None = None) -> None:
        """Compute on ``device``. Errors: ConfigurationError for one that is not there."""
        super().__init__("torch", device, TORCH)
        self._by_row = self.transfer.device.type == "cpu" if by_row is None else by_row
        self._looks = _Looks()

    def _verdicts(self, scores: Tensor, rounds: Sequence[Round]) -> list[Verdict]:
        if not self._by_row:
            return super()._verdicts(scores, rounds)
        rows = HostRows(scores, self._looks.of(scores.shape[1]))
        # One round a call: what was computed to reject a draft serves the correction from that row.
        return [verdict for each in rounds for verdict in verdicts(rows, [each])]


class _Looks(threading.local):
    """The working rows of a thread, for one vocabulary at a time."""

    def __init__(self) -> None:
        self._size = 0
        self._looks: tuple[Look, Look] | None = None

    def of(self, size: int) -> tuple[Look, Look]:
        """Binary32 and binary64, for rows of ``size`` columns."""
        if self._looks is None or self._size != size:
            self._size = size
            self._looks = Look(size, torch.float32), Look(size, torch.float64)
        return self._looks
