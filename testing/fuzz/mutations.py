"""Changes of streams of frames that know where the fields are; the seed decides everything."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random

from draftwire.wire.checksum import crc32c
from spec.oracle.frames import TYPE_NUMBERS, TYPES, kind_bytes, table
from testing.fuzz.pieces import Piece, with_payload

REPLY, COMPLETE, STEP = (TYPE_NUMBERS[name] for name in ("REPLY", "COMPLETE", "STEP"))
SPARSE = 2
LAYOUT_AT, DEPTH_AT, SUPPORT_AT, HEAD = 10, 44, 60, 64  # in a REPLY
ROW = 16
COMPLETE_SIZES_AT = 44
FLOATS = tuple(
    bits.to_bytes(4, "little")
    for bits in (
        *(
            0x00000000,
            0x80000000,
            0x7FC00000,
            0x7F800000,
            0xFF800000,
            0xBF800000,
        ),  # zeros, NaN, infinities, -1
        *(0x00000001, 0x00800000, 0x007FFFFF, 0x7F7FFFFF),  # subnormal, smallest, largest
        *(0x3F800000, 0x3F800001, 0x3F7FFFFF, 0x40000000, 0x3E800000),  # one, beside it, 2, 1/4
        *(0x33800000, 0x33000000, 0x38000000),  # a count of one, half of that, some
    )
)
TEXTS = (b"", b"\0x", b" ", b"\x7f", b"\x80", b"a" * 32, b"depth", b"\n")


@cache
def fields_of(name: str) -> list[tuple[int, int, str]]:
    """Offset, size and kind of each field of a payload."""
    found, at = [], 0
    for _, kind in table(name):
        size = kind_bytes(kind)
        found.append((at, size, kind))
        at += size
    return found


def boundary(random: Random, kind: str, size: int, old: bytes) -> bytes:
    """Bytes of a field at one of its edges, or beside what it is."""
    if kind == "f32":
        return random.choice(FLOATS)
    if kind.startswith("text"):
        return random.choice(TEXTS).ljust(size, b"\0")[:size]
    if kind.startswith(("bytes", "zero")):
        edge = bytes(size) if random.random() < 0.5 else old
        at = random.randrange(size)
        return edge[:at] + bytes([edge[at] ^ 1 << random.randrange(8)]) + edge[at + 1 :]
    top = (1 << 8 * size) - 1
    value = int.from_bytes(old, "little")
    edges = (0, 1, 2, 3, 5, 6, 7, top, top - 1, top >> 1, (top >> 1) + 1, 1 << 24, (1 << 24) + 1)
    near = (value - 1, value + 1, value ^ 1 << random.randrange(8 * size), value * 2)
    return (random.choice(edges + near) & top).to_bytes(size, "little")


def put(data: bytes, at: int, value: bytes) -> bytes:
    """``data`` with ``value`` at an offset."""
    return data[:at] + value + data[at + len(value) :]


# One frame ---------------------------------------------------------------------------------------


def change_field(random: Random, piece: Piece) -> Piece:
    """One field of the fixed part at a boundary value, checksums right."""
    name = TYPES.get(piece.type)
    if name is None:
        return flip_payload(random, piece)
    at, size, kind = random.choice(fields_of(name))
    old = piece.payload[at : at + size]
    if len(old) < size:
        return flip_payload(random, piece)
    return with_payload(piece, put(piece.payload, at, boundary(random, kind, size, old)))


def change_row(random: Random, piece: Piece) -> Piece:
    """One field, id or q of a row of a REPLY, its row checksum mostly right."""
    payload = piece.payload
    rows = rows_of(payload)
    if piece.type != REPLY or not rows:
        return change_field(random, piece)
    begin, size = random.choice(rows)
    where = random.random()
    if where < 0.35 or not size:
        at, width, kind = random.choice(fields_of("POSITION"))
        at += begin
        payload = put(payload, at, boundary(random, kind, width, payload[at : at + width]))
        return with_payload(piece, payload)
    q = payload[begin + ROW : begin + ROW + size]
    at = random.randrange(size // 4) * 4
    other = random.randrange(size // 4) * 4
    choice = random.randrange(5)
    if choice == 0:
        q = put(q, at, random.choice(FLOATS))
    elif choice == 1:
        q = put(put(q, at, q[other : other + 4]), other, q[at : at + 4])
    elif choice == 2:
        q = put(q, at, q[other : other + 4])
    elif choice == 3:
        q = put(q, at, boundary(random, "i32", 4, q[at : at + 4]))
    else:
        q = put(q, at, moved_tickets(q[at : at + 4], random.choice((-1, 1))))
    payload = put(payload, begin + ROW, q)
    if random.random() < 0.9:
        payload = put(payload, begin + ROW - 4, struct.pack("<I", crc32c(q)))
    return with_payload(piece, payload)


def moved_tickets(binary32: bytes, by: int) -> bytes:
    """A q whose count is one more or less; what is no small number stays."""
    value = struct.unpack("<f", binary32)[0] * (1 << 24)
    if not 0 <= value < 1 << 25:
        return binary32
    return struct.pack("<f", max(value + by, 0) / (1 << 24))


def rows_of(payload: bytes) -> list[tuple[int, int]]:
    """Begin of each row of a REPLY, and bytes of its q."""
    if len(payload) < HEAD:
        return []
    (depth,) = struct.unpack_from("<H", payload, DEPTH_AT)
    if not depth or (len(payload) - HEAD) % depth:
        return []
    stride = (len(payload) - HEAD) // depth
    if stride < ROW or (stride - ROW) % 4:
        return []
    return [(HEAD + index * stride, stride - ROW) for index in range(depth)]


def flip_payload(random: Random, piece: Piece) -> Piece:
    """One bit of the payload, its checksum made right."""
    if not piece.payload:
        return with_payload(piece, b"\0")
    at = random.randrange(len(piece.payload))
    flipped = bytes([piece.payload[at] ^ 1 << random.randrange(8)])
    return with_payload(piece, put(piece.payload, at, flipped))


def change_header(random: Random, piece: Piece) -> Piece:
    """Version, type, flags or length, the header's checksum right."""
    choice = random.randrange(4)
    if choice == 0:
        return replace(piece, version=random.choice((0, 1, 2, 3, 255)))
    if choice == 1:
        return replace(piece, type=random.choice((*range(14), 127, 255)))
    if choice == 2:
        return replace(piece, flags=random.choice((1, 0x8000, 0xFFFF)))
    length = len(piece.payload)
    near = (0, 1, length - 1, length + 1, length * 2, (1 << 32) - 1, 1 << 31, 1 << 24)
    return replace(piece, length=random.choice(near) & 0xFFFFFFFF)


def break_checksum(random: Random, piece: Piece) -> Piece:
    """A wrong header or payload checksum, or magic."""
    choice = random.randrange(3)
    if choice == 0:
        return replace(piece, header_sum=random.getrandbits(32))
    if choice == 1:
        return replace(piece, payload_sum=random.getrandbits(32))
    at = random.randrange(4)
    return replace(piece, magic=piece.magic[:at] + random.randbytes(1) + piece.magic[at + 1 :])


def break_mac(random: Random, piece: Piece) -> Piece:
    """A wrong MAC, one of another length, or one where none is due."""
    return replace(piece, mac=random.randbytes(random.choice((0, 16, 16, 15, 17))))


def resize_payload(random: Random, piece: Piece) -> Piece:
    """Bytes cut off, added or left out inside, length and checksum right."""
    size = random.choice((1, 2, 3, 4, 8, 16))
    payload = piece.payload
    at = random.randrange(len(payload) + 1)
    choice = random.randrange(4)
    if choice == 0:
        payload = payload[:-size]
    elif choice == 1:
        payload = payload + random.randbytes(size)
    elif choice == 2:
        payload = payload[:at] + payload[at + size :]
    else:
        payload = payload[:at] + payload[at : at + size] + payload[at:]
    return with_payload(piece, payload)


ONE_FRAME: tuple[Callable[[Random, Piece], Piece], ...] = (
    *(change_field,) * 6,
    *(change_row,) * 5,
    *(flip_payload,) * 3,
    change_header,
    break_checksum,
    break_mac,
    resize_payload,
)


def mutated_piece(random: Random, piece: Piece) -> Piece:
    """A frame after one change, now and then two."""
    change = change_row if piece.type == REPLY and random.random() < 0.5 else None
    piece = (change or random.choice(ONE_FRAME))(random, piece)
    return mutated_piece(random, piece) if random.random() < 0.15 else piece


# Several frames ----------------------------------------------------------------------------------

Turns = list[list[Piece]]


def mutated_turns(
    random: Random, turns: Sequence[Sequence[Piece]], foreign: Sequence[Piece]
) -> Turns:
    """A conversation after one to three changes of its frames, their order or their turns."""
    result = [list(turn) for turn in turns]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if random.random() < 0.7:
            change_one(random, result)
        else:
            random.choice(ARRANGEMENTS)(random, result, foreign)
    if random.random() < 0.1:
        result = [[piece for turn in result for piece in turn]]
    return result


def change_one(random: Random, turns: Turns) -> None:
    """Change one frame; a COMPLETE behind a changed REPLY mostly speaks of the changed one."""
    turn, index = place(random, turns)
    if index >= len(turn):
        return
    turn[index] = changed = mutated_piece(random, turn[index])
    follows = turn[index + 1] if index + 1 < len(turn) else None
    if changed.type == REPLY and follows is not None and follows.type == COMPLETE:
        sizes = struct.pack("<II", len(changed.payload), crc32c(changed.payload))
        if random.random() < 0.9 and len(follows.payload) >= COMPLETE_SIZES_AT + 8:
            turn[index + 1] = with_payload(follows, put(follows.payload, COMPLETE_SIZES_AT, sizes))


def place(random: Random, turns: Turns) -> tuple[list[Piece], int]:
    """A turn that has frames, and one of them; an empty turn and 0 if nothing is left."""
    full = [turn for turn in turns if turn]
    if not full:
        return turns[0], 0
    turn = random.choice(full)
    return turn, random.randrange(len(turn))


def leave_out(random: Random, turns: Turns, foreign: Sequence[Piece]) -> None:
    """One frame is missing."""
    turn, index = place(random, turns)
    del turn[index : index + 1]


def repeat(random: Random, turns: Turns, foreign: Sequence[Piece]) -> None:
    """One frame comes again, at once or later."""
    turn, index = place(random, turns)
    if index < len(turn):
        random.choice(turns).insert(0, turn[index]) if random.random() < 0.5 else turn.insert(
            index, turn[index]
        )


def swap(random: Random, turns: Turns, foreign: Sequence[Piece]) -> None:
    """Two frames change places."""
    (one, i), (other, j) = place(random, turns), place(random, turns)
    if i < len(one) and j < len(other):
        one[i], other[j] = other[j], one[i]


def insert(random: Random, turns: Turns, foreign: Sequence[Piece]) -> None:
    """A frame of another conversation comes in between, changed or not."""
    turn, index = place(random, turns)
    piece = random.choice(foreign)
    turn.insert(index, mutated_piece(random, piece) if random.random() < 0.5 else piece)


def splice(random: Random, turns: Turns, foreign: Sequence[Piece]) -> None:
    """A payload goes on as another's does."""
    turn, index = place(random, turns)
    if index < len(turn):
        ours, other = turn[index].payload, random.choice(foreign).payload
        at = random.randrange(len(ours) + 1)
        turn[index] = with_payload(turn[index], ours[:at] + other[at:])


def swap_turns(random: Random, turns: Turns, foreign: Sequence[Piece]) -> None:
    """Two turns change places."""
    i, j = random.randrange(len(turns)), random.randrange(len(turns))
    turns[i], turns[j] = turns[j], turns[i]


ARRANGEMENTS = (leave_out, repeat, swap, insert, splice, swap_turns)


# Bytes -------------------------------------------------------------------------------------------


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """Now and then a stream is cut, or changed without regard to its frames."""
    choice = random.random()
    if choice < 0.85 or not data:
        return data
    at = random.randrange(len(data))
    if choice < 0.92:
        return data[:at]
    if choice < 0.96:
        return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
    return data[:at] + random.randbytes(random.randrange(1, 40)) + data[at:]


def random_split(random: Random, data: bytes) -> list[bytes]:
    """The bytes in pieces of any sizes."""
    pieces, at = [], 0
    while at < len(data):
        size = random.choice((1, 2, 3, 7, 15, 16, 17, 20, 64, 300))
        pieces.append(data[at : at + size])
        at += size
    return pieces
