"""Hidden states of the target that a drafter reads: what both sides agree on (P35).

States decide how often drafts are accepted and nothing else: any q is lossless.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftwire.wire.registry import HIDDEN_ITEM_BYTES, HiddenDtype


@dataclass(frozen=True, slots=True)
class StateFormat:
    """What a row of states holds: the states of one committed token.

    layers: of the target, rising, 0 = what its first layer puts out. width: elements of one layer's
    state, d. fused: one row of d elements, already projected and normed beside the target, in place
    of one of ``len(layers)`` x d. dtype: an element on the wire.
    """

    layers: tuple[int, ...]
    width: int
    dtype: HiddenDtype
    fused: bool = False

    @property
    def elements(self) -> int:
        """Elements of a row."""
        return self.width if self.fused else self.width * len(self.layers)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on the wire."""
        return self.elements * HIDDEN_ITEM_BYTES[self.dtype]
