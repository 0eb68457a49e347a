"""The keyed generator, and decisions made of its words: A13 to A15 of spec/arithmetic.md."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from fractions import Fraction

WORD_BITS = 24

PROPOSAL, ACCEPTANCE, CORRECTION, BONUS, TARGET_ONLY = 1, 2, 3, 4, 5

LANE = 1 << 32
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

Lanes = tuple[int, int, int, int]


def philox(counter: Lanes, key: tuple[int, int], rounds: int = 10) -> Lanes:
    """Philox 4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3")."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = MULTIPLIERS[0] * x0, MULTIPLIERS[1] * x2
        x0, x1, x2, x3 = (
            second // LANE ^ x1 ^ k0,
            second % LANE,
            first // LANE ^ x3 ^ k1,
            first % LANE,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) % LANE, (k1 + KEY_STEPS[1]) % LANE
    return x0, x1, x2, x3


def key_of(seed: int, stream: int, domain: int) -> tuple[int, int]:
    """A13: KEY(domain) of a request, as two lanes."""
    text = (
        b"draftwire key v1"
        + seed.to_bytes(16, "little")
        + stream.to_bytes(8, "little")
        + domain.to_bytes(4, "little")
    )
    digest = hashlib.sha256(text).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def link_key_of(proposal_key: int) -> int:
    """P29: what a session is known by on the links of ranks that do not draw."""
    digest = hashlib.sha256(b"draftwire link v1" + proposal_key.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "little")


def words_at(
    key: tuple[int, int], generation: int, round_: int, position: int, bits: int = WORD_BITS
) -> Iterator[int]:
    """A13: the words of one address, number 0 first; ``key`` is that of the address's domain."""
    block = 0
    while True:
        for lane in philox((block, position, round_, generation), key):
            yield lane >> (32 - bits)
        block += 1


def below(bound: int, words: Iterator[int], bits: int = WORD_BITS) -> int:
    """A14: an integer uniform in 0..bound-1."""
    n = 0
    while 2 ** (bits * n) < bound:
        n += 1
    whole = bound * (2 ** (bits * n) // bound)
    while True:
        u = 0
        for _ in range(n):
            u = (u << bits) + next(words)
        if u < whole:
            return u % bound


def locate(edges: Sequence[Fraction], words: Iterator[int], bits: int = WORD_BITS) -> int:
    """A15: the number of edges that are at most U, read to as many words as decide it."""
    low, width = Fraction(0), Fraction(1)
    while any(low < edge < low + width for edge in edges):
        width /= 2**bits
        low += next(words) * width
    return sum(edge <= low for edge in edges)
