"""A group of ranks over torch.distributed: gloo on CPUs, NCCL on GPUs (A25)."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as distributed

from draftwire.errors import ConfigurationError, TransportError
from draftwire.kernels.shards.shard import LEADER, Integers

BACKENDS: Final = {"gloo": "cpu", "nccl": "cuda"}
FOREVER: Final = 7 * 24 * 3600.0
"""Seconds a rank waits for another: no rank times out on its own clock while the others live. Over
gloo a rank that has died is noticed by its closed connection, at once."""


class TorchGroup:
    """Implements :class:`draftwire.kernels.shards.shard.PointToPoint` over a process group.

    device: where arrays travel from, "cpu" for gloo and the rank's own GPU for NCCL. Every method
    raises TransportError when a rank is gone; the group cannot be used afterwards.
    """

    def __init__(self, group: Any = None, device: str = "cpu") -> None:
        """Use a process group that torch has made; None = the default one."""
        self.rank = int(distributed.get_rank(group))
        self.size = int(distributed.get_world_size(group))
        self._group = group
        self._device = torch.device(device)

    def maximum(self, values: Integers) -> Integers:
        """The largest of each element over all ranks."""
        return self._reduced(values, distributed.ReduceOp.MAX)

    def sum(self, values: Integers) -> Integers:
        """The sum of each element over all ranks."""
        return self._reduced(values, distributed.ReduceOp.SUM)

    def gather(self, values: Integers) -> Integers:
        """The arrays of all ranks, in the order of ranks."""
        own = self._sent(values)
        found = [torch.empty_like(own) for _ in range(self.size)]
        try:
            distributed.all_gather(found, own, group=self._group)
            return np.stack([self._received(each) for each in found])
        except RuntimeError as error:
            raise _gone(error) from error

    def broadcast(self, values: Integers) -> Integers:
        """The leader's array."""
        own = self._sent(values)
        try:
            distributed.broadcast(own, group=self._group, group_src=LEADER)
            return self._received(own)
        except RuntimeError as error:
            raise _gone(error) from error

    def send(self, values: Integers, rank: int) -> None:
        """As the leader: send an array to one other rank."""
        try:
            distributed.send(self._sent(values), group=self._group, group_dst=rank)
        except RuntimeError as error:
            raise _gone(error) from error

    def receive(self, size: int) -> Integers:
        """As another rank: the leader's array of so many numbers."""
        own = self._sent(np.zeros(size, np.int64))
        try:
            distributed.recv(own, group=self._group, group_src=LEADER)
            return self._received(own)
        except RuntimeError as error:
            raise _gone(error) from error

    def _reduced(self, values: Integers, operation: Any) -> Integers:
        own = self._sent(values)
        try:
            distributed.all_reduce(own, op=operation, group=self._group)
            return self._received(own)
        except RuntimeError as error:
            raise _gone(error) from error

    def _sent(self, values: Integers) -> torch.Tensor:
        # A copy: collectives write into what they are given.
        return torch.from_numpy(np.array(values, np.int64)).to(self._device)

    def _received(self, tensor: torch.Tensor) -> Integers:
        array: Integers = tensor.cpu().numpy()
        return array


def join(
    rank: int,
    size: int,
    rendezvous: str,
    *,
    backend: str = "gloo",
    device: str | None = None,
    patience: float = FOREVER,
) -> TorchGroup:
    """Meet the other ranks and return the group; every rank calls this once.

    rendezvous: "HOST:PORT", where the leader listens. device: None = for NCCL the GPU of the rank's
    number among those of its machine. patience: seconds to wait for the others, now and in every
    collective; NCCL notices a rank that has died by nothing else. Raises ConfigurationError
    (backend, rank, device), TransportError (a rank is missing).
    """
    if backend not in BACKENDS:
        raise ConfigurationError(f"there is no backend {backend!r}: one of {', '.join(BACKENDS)}")
    if not 0 <= rank < size:
        raise ConfigurationError(f"there is no rank {rank} of {size}")
    device = device or BACKENDS[backend]
    if backend == "nccl":
        device = claim_gpu(rank, device)
    try:
        distributed.init_process_group(
            backend,
            init_method=f"tcp://{rendezvous}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=patience),
        )
    except (RuntimeError, ValueError) as error:
        raise TransportError(f"the ranks did not meet at {rendezvous}: {error}") from error
    return TorchGroup(device=device)


def leave() -> None:
    """End the default group in this process."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def claim_gpu(rank: int, device: str) -> str:
    """Make a GPU the current one of this process, which NCCL wants to be another on each rank."""
    number = torch.cuda.device_count()
    if not number:
        raise ConfigurationError("nccl needs a GPU that torch can use: take gloo")
    if device == "cuda":
        device = f"cuda:{rank % number}"
    torch.cuda.set_device(device)
    # Otherwise a collective that is given up ends the process without a reason.
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    return device


def _gone(error: RuntimeError) -> TransportError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return TransportError(f"a rank is gone: {reason}")
