"""Hidden states of the target that a drafter reads: what both sides agree on (P36, P37).

States decide how often drafts are accepted and nothing else: any q is lossless.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NoReturn

from draftwire.errors import ProtocolError, ProtocolErrorCode
from draftwire.wire.registry import (
    HIDDEN_ITEM_BYTES,
    MAX_STATE_LAYERS,
    Feature,
    HiddenDtype,
    Role,
)

PROJECTION_BYTES: Final = 32
MOST_BLOCK_BYTES: Final = 2 + 2 * MAX_STATE_LAYERS + PROJECTION_BYTES
"""What may stand behind the fixed fields of a drafter's HELLO."""

_ITEM_TOP: Final = bytes(each & 0x7F == 0x7F for each in range(256))  # sign and 7 of its exponent
_ITEM_NEXT: Final = bytes(each >= 0x80 for each in range(256))  # and the last bit of that


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


def finite(rows: bytes | memoryview, dtype: HiddenDtype) -> bool:
    """Say whether every element is finite; dtype: BFLOAT16 or FLOAT32.

    Either is infinite or no number where all bits of its exponent are set, and those lie in its two
    highest bytes.
    """
    size, view = HIDDEN_ITEM_BYTES[dtype], bytes(rows)
    top = int.from_bytes(view[size - 1 :: size].translate(_ITEM_TOP), "little")
    return not top & int.from_bytes(view[size - 2 :: size].translate(_ITEM_NEXT), "little")


# What stands behind the fixed fields of a drafter's HELLO ----------------------------------------


def has_block(role: Role, features: Feature) -> bool:
    """Whether a HELLO says which layers its drafter reads."""
    return role is Role.DRAFTER and Feature.STATES in features


def encode_block(layers: tuple[int, ...], projection: bytes, features: Feature) -> bytes:
    """Return the block; ValueError where it is none, a bug of ours."""
    fused = Feature.FUSED in features
    if len(projection) != (PROJECTION_BYTES if fused else 0):
        raise ValueError("a projection is named where rows may be fused, and not otherwise")
    try:
        block = struct.pack(f"<{len(layers) + 1}H", len(layers), *layers) + projection
    except struct.error as error:
        raise ValueError(f"a layer is outside its type: {error}") from error
    decode_block(block, features)
    return block


def decode_block(block: bytes, features: Feature) -> tuple[tuple[int, ...], bytes]:
    """Return the layers and the projection's digest; ProtocolError, naming the field."""
    code = ProtocolErrorCode
    if len(block) < 2:
        _refuse(code.BAD_LENGTH, "", "its layers are cut off")
    (count,) = struct.unpack_from("<H", block)
    if not count:
        _refuse(code.BAD_FIELD, "hidden_layers", "there are none")
    if count > MAX_STATE_LAYERS:
        _refuse(code.LIMIT_EXCEEDED, "hidden_layers", f"{count} are over {MAX_STATE_LAYERS}")
    end = 2 + 2 * count
    if len(block) != end + (PROJECTION_BYTES if Feature.FUSED in features else 0):
        _refuse(code.BAD_LENGTH, "", f"{len(block)} bytes for {count} layers")
    layers = struct.unpack_from(f"<{count}H", block, 2)
    if any(before >= after for before, after in pairwise(layers)):
        _refuse(code.BAD_FIELD, "hidden_layers", f"{layers} do not rise")
    return layers, block[end:]


def _refuse(code: ProtocolErrorCode, field: str, message: str) -> NoReturn:
    raise ProtocolError(code, f"HELLO: {field or 'length'}: {message}", field=field or None)
