"""What a session of a block drafter holds of the target's states: their keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwire.engines.dspark.backbone import BlockDrafter, Keys


class StateKeys:
    """Keys and values of the target's states, a layer each, with the positions they stand at.

    Positions rise; some may be missing. What a state says does not depend on others, so that any
    of them can be left out.
    """

    def __init__(self, drafter: BlockDrafter) -> None:
        """Begin with none."""
        self._drafter = drafter
        self._keys: list[Keys] = []
        self._positions: list[int] = []

    def __len__(self) -> int:
        """States that are held."""
        return len(self._positions)

    @property
    def held(self) -> int:
        """n: the states of the first n positions are held, without a gap."""
        count = len(self._positions)
        if not count or self._positions[-1] == count - 1:
            return count
        return next(at for at, place in enumerate(self._positions) if at != place)

    @property
    def bytes(self) -> int:
        """Memory of the keys and values."""
        return sum(each.untyped_storage().nbytes() for pair in self._keys for each in pair)

    def add(self, first: int, fused: Tensor) -> None:
        """Take the states (R, d) of positions from ``first`` on, in the place of those held."""
        self.truncate(first)
        places = torch.arange(first, first + len(fused), device=fused.device)
        keys = self._drafter.state_keys(fused[None], places[None])
        if self._keys:
            keys = [
                (torch.cat([old[0], new[0]], 2), torch.cat([old[1], new[1]], 2))
                for old, new in zip(self._keys, keys, strict=True)
            ]
        self._keys = keys
        self._positions += range(first, first + len(fused))

    def truncate(self, length: int) -> None:
        """Forget the states of positions from ``length`` on."""
        kept = len(self._positions)
        while kept and self._positions[kept - 1] >= length:
            kept -= 1
        if kept < len(self._positions):
            del self._positions[kept:]
            self._keys = [(keys[:, :, :kept], values[:, :, :kept]) for keys, values in self._keys]

    def before(self, position: int) -> list[Keys]:
        """Keys and values of the states before a position, a layer each."""
        count = len(self._positions)
        while count and self._positions[count - 1] >= position:
            count -= 1
        if count:
            return [(keys[:, :, :count], values[:, :, :count]) for keys, values in self._keys]
        like = self._drafter.fc.weight
        return self._drafter.state_keys(
            like.new_zeros(1, 0, self._drafter.shape.hidden_size),
            torch.zeros(1, 0, dtype=torch.long, device=like.device),
        )
