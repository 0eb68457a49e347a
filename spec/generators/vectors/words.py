"""Vectors of the keyed generator (A13) and of decisions made of words (A14 to A16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice

from spec.generators.vectors.form import Numbers, Vector, sparse
from spec.oracle import decisions
from spec.oracle import words as oracle

FULL = (1 << 32) - 1
SEEDS = [(0, 0), (1, 0), (0, 1), (2**64, 7), (2**128 - 1, 2**64 - 1), (0x0123456789ABCDEF, 42)]
DOMAINS = {"PROPOSAL": 1, "ACCEPTANCE": 2, "CORRECTION": 3, "BONUS": 4, "TARGET_ONLY": 5}


def blocks() -> Iterator[Vector]:
    """Philox itself: the published answers first, then others."""
    cases: list[tuple[oracle.Lanes, tuple[int, int], int]] = [
        ((0, 0, 0, 0), (0, 0), 10),
        ((FULL, FULL, FULL, FULL), (FULL, FULL), 10),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), 10),
        ((0, 0, 0, 0), (0, 0), 7),
        ((1, 0, 0, 0), (0, 1), 10),
        ((0, 1, 0, 0), (1, 0), 10),
    ]
    numbers = Numbers(1)
    for _ in range(10):
        a, b, c, d, e, f = (numbers.below(1 << 32) for _ in range(6))
        cases.append(((a, b, c, d), (e, f), 10))
    for counter, key, rounds in cases:
        lanes = oracle.philox(counter, key, rounds)
        yield {
            "op": "philox",
            "counter": list(counter),
            "key": list(key),
            "rounds": rounds,
            "lanes": list(lanes),
        }


def keys() -> Iterator[Vector]:
    """KEY(domain); seeds and the u64 proposal key as hexadecimal numbers."""
    for seed, stream in SEEDS:
        for name, domain in DOMAINS.items():
            low, high = oracle.key_of(seed, stream, domain)
            key = low | high << 32
            vector: Vector = {
                "op": "key",
                "seed": f"{seed:032x}",
                "stream": f"{stream:016x}",
                "domain": name,
                "key": [low, high],
                "u64": f"{key:016x}",
            }
            if domain == oracle.PROPOSAL:
                vector["link"] = f"{oracle.link_key_of(key):016x}"
            yield vector


def streams() -> Iterator[Vector]:
    """The first words of addresses, over the end of the first block."""
    numbers = Numbers(2)
    addresses = [(1, 1, 0), (1, 1, 1), (1, 2, 0), (2, 1, 0), (FULL, FULL, FULL), (1, 3, 129_280)]
    addresses += [(numbers.below(100), numbers.below(1000), numbers.below(8192)) for _ in range(4)]
    for index, (generation, round_, position) in enumerate(addresses):
        for name, domain in DOMAINS.items():
            seed, stream = SEEDS[(index + domain) % len(SEEDS)]
            bits = 24 if index % 3 else (1, 8, 16, 31, 32)[domain - 1]
            key = oracle.key_of(seed, stream, domain)
            found = islice(oracle.words_at(key, generation, round_, position, bits), 6)
            yield {
                "op": "words",
                "seed": f"{seed:032x}",
                "stream": f"{stream:016x}",
                "generation": generation,
                "round": round_,
                "position": position,
                "domain": name,
                "bits": bits,
                "words": list(found),
            }


def keyed() -> Iterator[Vector]:
    """The file ``words``."""
    yield from blocks()
    yield from keys()
    yield from streams()


class Counted:
    """Words of a list, counted as they are read."""

    def __init__(self, words: Sequence[int]) -> None:
        self.words = words
        self.read = 0

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> int:
        self.read += 1
        return self.words[self.read - 1]


def below(bound: int, words: list[int], bits: int = 24) -> Vector:
    """One bounded integer: its value and how many words it took."""
    counted = Counted(words)
    value = oracle.below(bound, counted, bits)
    return {
        "op": "below",
        "bound": bound,
        "bits": bits,
        "words": words,
        "value": value,
        "read": counted.read,
    }


def locate(edges: list[int], denominator: int, words: list[int], bits: int = 24) -> Vector:
    """One exact comparison with many edges."""
    counted = Counted(words)
    index = oracle.locate([Fraction(edge, denominator) for edge in edges], counted, bits)
    return {
        "op": "locate",
        "edges": edges,
        "denominator": denominator,
        "bits": bits,
        "words": words,
        "index": index,
        "read": counted.read,
    }


def draw(counts: list[int], words: list[int], bits: int = 24) -> Vector:
    """One draw from a row of counts."""
    counted = Counted(words)
    token = decisions.draw(counts, counted, bits)
    return {
        "op": "draw",
        "vocab_size": len(counts),
        "total": sum(counts),
        **sparse(counts),
        "bits": bits,
        "words": words,
        "token": token,
        "read": counted.read,
    }


def bounded() -> Iterator[Vector]:
    """A14: no word, one word, rejected words, several words."""
    last = (1 << 24) - 1
    yield below(1, [])
    for word in (0, 1, last):
        yield below(1 << 24, [word])
    yield below(3, [last, 5])
    yield below(3, [last - 1])
    yield below(100, [16_777_200, 16_777_199])
    yield below((1 << 24) + 1, [1, 0])
    yield below((1 << 24) + 1, [last, last, 3, 9])
    yield below(10**15, [7, last, 3, 0])
    for word in range(16):
        yield below(5, [word, 2], 4)
        yield below(6, [word >> 2, word & 3, 0, 1], 2)


def compared() -> Iterator[Vector]:
    """A15: decided at once, on a tie, and after a tie has gone on for several words."""
    third = [5_592_405] * 4
    yield locate([], 1, [])
    yield locate([0, 0, 7], 7, [])
    yield locate([1], 3, [5_592_404])
    yield locate([1], 3, [*third[:1], 5_592_406])
    yield locate([1], 3, [*third[:2], 0])
    yield locate([1], 3, [*third[:3], 16_777_215])
    yield locate([1, 2], 3, [11_184_810, 11_184_810, 11_184_811])
    yield locate([1, 1, 2], 4, [4_194_304])
    yield locate([1, 1, 2], 4, [4_194_303])
    yield locate([1, 1, 2, 4], 4, [8_388_608])
    for word in range(8):
        yield locate([1, 3, 6], 8, [word], 3)
        yield locate([1, 2, 4], 5, [word, 7 - word, 1, 6], 3)


def drawn() -> Iterator[Vector]:
    """A16: on every edge of the cumulative counts."""
    row = [0, 3, 0, 0, 4, 1, 0]
    for word in range(8):
        yield draw(row, [word], 3)
    tickets = 1 << 24
    for counts in ([tickets], [1, tickets - 1], [tickets - 1, 1], [0, 5, 0, tickets - 5, 0]):
        for word in (0, 1, 4, 5, tickets - 2, tickets - 1):
            yield draw(counts, [word])
    numbers = Numbers(3)
    for size in (31, 32, 33, 127, 128, 129):
        counts = [tickets // (4 * size) if numbers.below(3) else 0 for _ in range(size)]
        counts[numbers.below(size)] += tickets - sum(counts)
        for _ in range(4):
            yield draw(counts, [numbers.below(tickets)])
    for word in (0, 6, 13, 14, 15):
        yield draw([2, 0, 4, 1], [word, 3], 4)


def decided() -> Iterator[Vector]:
    """The file ``draw``."""
    yield from bounded()
    yield from compared()
    yield from drawn()
