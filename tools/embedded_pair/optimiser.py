"""Muon for the blocks' matrices, AdamW for the rest, driven by one wall-clock schedule."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def orthogonalise(stack: Tensor) -> Tensor:
    """Push all singular values of every matrix in ``stack`` (n, rows, cols) towards one.

    Newton-Schulz iteration of Jordan et al. 2024 (Muon), in float32 and batched over matrices.
    """
    a, b, c = NEWTON_SCHULZ
    tall = stack.shape[1] > stack.shape[2]
    x: Tensor = stack.transpose(1, 2) if tall else stack
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Muon:
    """Momentum whose update is orthogonalised, over matrices grouped by shape."""

    def __init__(self, matrices: list[torch.nn.Parameter], rate: float) -> None:
        """Group ``matrices`` by shape; ``rate`` is the base learning rate."""
        self.rate = rate
        self._groups: dict[tuple[int, ...], list[torch.nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            self._groups[tuple(matrix.shape)].append(matrix)
        self._momentum = {
            shape: torch.zeros(len(group), *shape) for shape, group in self._groups.items()
        }

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Apply one update at ``scale`` times the base rate, and drop the gradients."""
        for shape, group in self._groups.items():
            gradient = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            momentum = self._momentum[shape]
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonalise(gradient.lerp_(momentum, MOMENTUM))
            rate = self.rate * scale * max(1.0, shape[0] / shape[1]) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.sub_(change, alpha=rate)
                matrix.grad = None


class Optimiser:
    """Muon over the blocks' matrices and AdamW over embeddings and norms, as one object."""

    def __init__(
        self,
        model: torch.nn.Module,
        blocks: torch.nn.Module,
        matrix_rate: float,
        vector_rate: float,
    ) -> None:
        """Take every parameter of ``model`` that learns, at base rates for matrices and the rest.

        blocks: whose matrices Muon takes.
        """
        matrices = [p for p in blocks.parameters() if p.ndim == 2]
        taken = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if p.requires_grad and id(p) not in taken]
        self._muon = Muon(matrices, matrix_rate)
        self._adam = torch.optim.AdamW(rest, lr=vector_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._vector_rate = vector_rate

    def step(self, scale: float) -> None:
        """Apply one update at ``scale`` times both base rates, and drop all gradients."""
        self._muon.step(scale)
        for group in self._adam.param_groups:
            group["lr"] = self._vector_rate * scale
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)


@dataclass
class Budget:
    """A phase's share of wall-clock time; the learning rate follows the share used."""

    seconds: float
    warm_up: float = 0.03
    decay: float = 0.5
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Start the clock."""
        self._start = time.monotonic()

    @property
    def used(self) -> float:
        """The fraction of the time that is gone, at least 0; 1 or more means: stop."""
        return (time.monotonic() - self._start) / self.seconds

    def scale(self) -> float:
        """Linear warm-up, then constant, then linear decay to ``floor`` over the last part."""
        used = min(self.used, 1.0)
        rising = min(1.0, used / self.warm_up + 0.02)
        falling = min(1.0, (1.0 - used) / self.decay)
        return rising * (self.floor + (1.0 - self.floor) * falling)
