"""Keyed randomness: every word is a pure function of its address (A13).

The generator is Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
1, 2, 3", SC'11). Nothing here holds a state that a call could advance, so call order, batch
neighbours and rounds without a draft cannot change a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from draftwire.errors import ArithmeticRefusalError, RefusalCode

WORD_BITS: Final = 24  # b
_U32: Final = 0xFFFFFFFF
_MULTIPLIER_0: Final = 0xD2511F53
_MULTIPLIER_1: Final = 0xCD9E8D57
_WEYL_0: Final = 0x9E3779B9
_WEYL_1: Final = 0xBB67AE85
_KEY_LABEL: Final = b"draftwire key v1"
_LINK_LABEL: Final = b"draftwire link v1"


class Domain(IntEnum):
    """Who owns a draw; the words of two domains share no key."""

    PROPOSAL = 1
    ACCEPTANCE = 2
    CORRECTION = 3
    BONUS = 4
    TARGET_ONLY = 5


@dataclass(frozen=True, slots=True)
class Address:
    """Where a draw is: ``position`` is the absolute index of the token drawn or judged."""

    generation: int
    round: int
    position: int
    domain: Domain


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int], rounds: int = 10
) -> tuple[int, int, int, int]:
    """One block of four u32 lanes for a counter of 4 u32 under a key of 2 (SC'11, section 3)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0 = (product_1 >> 32) ^ c1 ^ k0
        c1 = product_1 & _U32
        c2 = (product_0 >> 32) ^ c3 ^ k1
        c3 = product_0 & _U32
        k0 = (k0 + _WEYL_0) & _U32
        k1 = (k1 + _WEYL_1) & _U32
    return c0, c1, c2, c3


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The secret of one request: every key of it derives from ``seed`` and ``stream`` (A13).

    seed: 0..2^128-1; stream: u64, tells apart requests that share a seed.
    Errors: ArithmeticRefusalError OUT_OF_RANGE.
    """

    seed: int
    stream: int = 0

    def __post_init__(self) -> None:
        """Refuse a seed or stream outside its width."""
        _check_range("seed", self.seed, 128)
        _check_range("stream", self.stream, 64)

    def key(self, domain: Domain) -> tuple[int, int]:
        """KEY(domain) as two u32, lane 0 first."""
        digest = hashlib.sha256(
            _KEY_LABEL
            + self.seed.to_bytes(16, "little")
            + self.stream.to_bytes(8, "little")
            + int(domain).to_bytes(4, "little")
        ).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")

    @property
    def proposal_key(self) -> int:
        """KEY(PROPOSAL) as one u64, lane 0 in the low half: all that the drafter is told."""
        low, high = self.key(Domain.PROPOSAL)
        return low | high << 32


def link_key(proposal_key: int) -> int:
    """What a request is known by, beside its session id, on the links of ranks that draw nothing.

    proposal_key, result: u64 (P29). It says nothing of the words. Errors: ArithmeticRefusalError
    OUT_OF_RANGE.
    """
    _check_range("proposal key", proposal_key, 64)
    digest = hashlib.sha256(_LINK_LABEL + proposal_key.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "little")


class WordSource(Protocol):
    """Anything that has the words of an address."""

    def words(self, address: Address) -> Iterator[int]:
        """The words of ``address`` from number 0 on; each call begins again."""
        ...


class KeyedWords:
    """The words of a request in every domain: what the verifier holds.

    bits: width of a word, 1..32. Law: words are independent and uniform over 0..2^bits-1 as far as
    Philox 4x32-10 is a random function of its counter.
    """

    def __init__(self, request: RequestKey, bits: int = WORD_BITS) -> None:
        """Derive the key of every domain."""
        _check_bits(bits)
        self._keys = {domain: request.key(domain) for domain in Domain}
        self._shift = 32 - bits

    @property
    def bits(self) -> int:
        """Width of a word."""
        return 32 - self._shift

    def key(self, domain: Domain) -> tuple[int, int]:
        """KEY(domain) as two u32, lane 0 first: for what computes the same words elsewhere."""
        return self._keys[domain]

    def words(self, address: Address) -> Iterator[int]:
        """The words of ``address``, number 0 first; ends after 2^34."""
        return _stream(self._keys[address.domain], address, self._shift)


class ProposalWords:
    """The words of the PROPOSAL domain alone: what the drafter can compute from its u64 key."""

    def __init__(self, proposal_key: int, bits: int = WORD_BITS) -> None:
        """Split the key into its lanes."""
        _check_bits(bits)
        _check_range("proposal key", proposal_key, 64)
        self._key = (proposal_key & _U32, proposal_key >> 32)
        self._shift = 32 - bits

    def words(self, address: Address) -> Iterator[int]:
        """The words of ``address``; any domain but PROPOSAL is refused (OUT_OF_RANGE)."""
        if address.domain is not Domain.PROPOSAL:
            raise ArithmeticRefusalError(
                RefusalCode.OUT_OF_RANGE, f"a proposal key has no words for {address.domain.name}"
            )
        return _stream(self._key, address, self._shift)


def _stream(key: tuple[int, int], address: Address, shift: int) -> Iterator[int]:
    generation, round_, position = address.generation, address.round, address.position
    if (generation | round_ | position) >> 32:  # also true of any negative number
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"an address holds three u32, not {address}"
        )
    return _lanes(key, (position, round_, generation), shift)


def _lanes(key: tuple[int, int], tail: tuple[int, int, int], shift: int) -> Iterator[int]:
    for block in range(1 << 32):
        for lane in philox4x32((block, *tail), key):
            yield lane >> shift


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 32:
        raise ArithmeticRefusalError(RefusalCode.OUT_OF_RANGE, f"a word has 1..32 bits, not {bits}")


def _check_range(name: str, value: int, bits: int) -> None:
    if value < 0 or value >> bits:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE, f"{name} must be in 0..2^{bits}-1, not {value}"
        )
