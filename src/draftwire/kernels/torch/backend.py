"""The ``torch`` backend: the same operations on any device that torch has, the CPU included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwire.errors import ConfigurationError
from draftwire.exact.quantise import check_temperature
from draftwire.exact.words import WORD_BITS
from draftwire.kernels.backend import Drawn, Draws, QRows, Verdicts
from draftwire.kernels.philox import domain_of, first_of, philox_block, philox_words, step_of
from draftwire.kernels.torch import host as torch_host
from draftwire.kernels.torch import quantise as torch_quantise
from draftwire.kernels.torch import verify as torch_verify
from draftwire.wire.messages import ProposalPolicy


class TorchArrays(ABC):
    """Tensors on one device, and the layout of a round's words; no arithmetic.

    Errors: ConfigurationError for a device that is not there.
    """

    def __init__(self, device: str = "cpu") -> None:
        try:
            self.device = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:
            raise ConfigurationError(f"torch has no device {device}: {error}") from None
        self._layouts: dict[int, tuple[Tensor, Tensor]] = {}

    def from_host(self, array: NDArray[Any]) -> Tensor:
        """A tensor of the array's values on the device."""
        return torch.from_numpy(np.array(array)).to(self.device)

    def to_host(self, array: Tensor) -> NDArray[Any]:
        """A NumPy array of the tensor's values; bfloat16 widens. Waits for the device."""
        widened = array.to(torch.float32) if array.dtype == torch.bfloat16 else array
        return widened.detach().cpu().numpy()

    @abstractmethod
    def words(self, keys: Tensor, addresses: Tensor, count: int) -> Tensor:
        """The first words of each address (A13)."""

    def draws(self, keys: Tensor, addresses: Tensor, depth: int) -> Draws[Tensor]:
        """All words of a round, 48 bits each."""
        batch, each = len(addresses), 2 * depth + 1
        steps, domains = self._layout(depth)
        places = addresses[:, None, :].repeat(1, each, 1)
        places[:, :, 2] += steps
        own = keys.index_select(1, domains)
        first = first_of(self.words(own.view(-1, 2), places.view(-1, 3), 2)).view(batch, each)
        return Draws(first[:, :depth], first[:, depth:-1], first[:, -1])

    def _layout(self, depth: int) -> tuple[Tensor, Tensor]:
        """Step and domain of each U, on the device: made once a depth, no copy in a round."""
        if depth not in self._layouts:
            made = [
                torch.tensor(list_(depth), device=self.device) for list_ in (step_of, domain_of)
            ]
            self._layouts[depth] = made[0], made[1]
        return self._layouts[depth]


class TorchBackend(TorchArrays):
    """Operations over tensors; see :class:`draftwire.kernels.backend.Backend`.

    Precision: weights, sums and decisions are binary64 on every device; on a CPU most drafts are
    decided in binary32 already, within its own bound. by_row: verify row after row, as on a CPU
    unless told otherwise; False is how a device does it. Errors: ConfigurationError for a device
    that is not there.
    """

    name = "torch"

    def __init__(self, device: str = "cpu", *, by_row: bool | None = None) -> None:
        super().__init__(device)
        self._by_row = self.device.type == "cpu" if by_row is None else by_row

    def words(self, keys: Tensor, addresses: Tensor, count: int) -> Tensor:
        """The first words of each address (A13)."""
        if self._by_row:  # a hundred small operations cost NumPy a tenth of what they cost torch
            return torch.from_numpy(philox_words(keys.numpy(), addresses.numpy(), count))
        generation, round_, position = addresses.unbind(1)
        counter = (torch.zeros_like(position), position, round_, generation)
        lanes = philox_block(counter, (keys[:, 0], keys[:, 1]))
        return torch.stack(lanes[:count], 1) >> (32 - WORD_BITS)

    def weights(self, logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Integer weights and the status (A1-A4)."""
        check_temperature(temperature)
        torch_quantise.check_logits(logits, 2)
        return torch_quantise.integer_weights(logits, temperature)

    def top_k(self, logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of n candidates, ties to the lowest id (A5, A8)."""
        torch_quantise.check_logits(logits, 2)
        return torch_quantise.top_k(logits, ids, k)

    def quantise(self, logits: Tensor, policy: ProposalPolicy) -> tuple[QRows[Tensor], Tensor]:
        """q of each row (A1-A10)."""
        return torch_quantise.quantise(logits, policy)

    def draw(self, q: QRows[Tensor], words: Tensor) -> Tensor:
        """The token of each word (A16)."""
        return torch_verify.draw(q, words)

    def lookup(self, q: QRows[Tensor], tokens: Tensor) -> Tensor:
        """Counts at one id a row."""
        return torch_verify.lookup(q, tokens)

    def residual_mass(self, logits: Tensor, q: QRows[Tensor]) -> Tensor:
        """sum(max(p - q, 0)) of each row (A19)."""
        return torch_verify.residual_mass(logits, q)

    def correction(self, logits: Tensor, q: QRows[Tensor], first: Tensor) -> Drawn[Tensor]:
        """A token from the residual (A19)."""
        return torch_verify.correction(logits, q, first)

    def target(self, logits: Tensor, first: Tensor) -> Drawn[Tensor]:
        """A token from p alone (A20)."""
        return torch_verify.target(logits, first)

    def verify(
        self, logits: Tensor, tokens: Tensor, q: QRows[Tensor], draws: Draws[Tensor]
    ) -> Verdicts[Tensor]:
        """Judge K drafts of each request (A18-A20)."""
        if self._by_row:
            return torch_host.verify(logits, tokens, q, draws)
        return torch_verify.verify(logits, tokens, q, draws)
