"""Laws of whole texts over all words: ``exact`` run once for every value of every word it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Final

from draftwire.conformance.vectors import Mismatch, Vector, expect
from draftwire.exact.counts import Counts
from draftwire.exact.verify import draw, target, verify
from draftwire.exact.words import Address, Domain

MAX_WORDS: Final = 8  # at one address: the rows of a vector must decide within these
MAX_TEXTS: Final = 1 << 20
MAX_STEPS: Final = 64  # tokens of a text, drafts of a round

Text = tuple[int, ...]


class AllWords:
    """A word source that follows one path through all values; a word read twice is the same."""

    def __init__(self, bits: int, path: list[int]) -> None:
        self._last = (1 << bits) - 1
        self._path = path
        self._read: dict[tuple[Address, int], int] = {}

    def words(self, address: Address) -> Iterator[int]:
        """The words of an address; a new one is the next of the path, or 0 at its end."""
        for number in range(MAX_WORDS):
            key = (address, number)
            if key not in self._read:
                if len(self._read) == len(self._path):
                    self._path.append(0)
                self._read[key] = self._path[len(self._read)]
            yield self._read[key]
        raise Mismatch(f"{address} is not decided by {MAX_WORDS} words")

    def advance(self) -> bool:
        """Step the path to the next one; false after the last."""
        while self._path and self._path[-1] == self._last:
            self._path.pop()
        if self._path:
            self._path[-1] += 1
        return bool(self._path)


def law_over_all_words(bits: int, program: Callable[[AllWords], Text]) -> dict[Text, Fraction]:
    """The law of what a program returns, every word uniform and independent of the others."""
    law: dict[Text, Fraction] = {}
    path: list[int] = []
    for _ in range(MAX_TEXTS):
        source = AllWords(bits, path)
        text = program(source)
        law[text] = law.get(text, Fraction(0)) + Fraction(1, 1 << bits * len(path))
        if not source.advance():
            return law
    raise Mismatch(f"the vector has more than {MAX_TEXTS} paths")


class Tables:
    """Rows by context, of a vector."""

    def __init__(self, vector: Vector) -> None:
        self._p: dict[str, list[int]] = vector["p"]
        self._q: dict[str, list[int]] = vector["q"]

    def p(self, text: Text) -> list[int]:
        """Integer weights of p after ``text``."""
        return self._p.get(" ".join(map(str, text)), self._p["*"])

    def q(self, text: Text) -> Counts:
        """Counts of q after ``text``."""
        row = self._q.get(" ".join(map(str, text)), self._q["*"])
        ids = tuple(v for v, count in enumerate(row) if count)
        return Counts(len(row), sum(row), ids, tuple(row[v] for v in ids))


def write_text(vector: Vector, tables: Tables, source: AllWords) -> Text:
    """One text: rounds of the vector's depths, with commits, until it ends."""
    text: Text = ()
    number = 0
    depths, bits, ends = vector["depths"], vector["bits"], set(vector["end_tokens"])
    while len(text) < vector["max_tokens"] and not ends.intersection(text[-1:]):
        number += 1
        depth = depths[(number - 1) % len(depths)]
        for token in _round(tables, text, number, depth, source, bits):
            text = (*text, token)
            if len(text) == vector["max_tokens"] or token in ends:
                break
    return text


def _round(
    tables: Tables, text: Text, number: int, depth: int, source: AllWords, bits: int
) -> Text:
    first = len(text)
    if depth == 0:
        words = source.words(Address(1, number, first, Domain.TARGET_ONLY))
        return (target(tables.p(text), words, bits),)
    drafts: Text = ()
    proposal: list[tuple[int, Counts]] = []
    for position in range(first, first + depth):
        counts = tables.q((*text, *drafts))
        words = source.words(Address(1, number, position, Domain.PROPOSAL))
        drafts = (*drafts, draw(counts, words, bits))
        proposal.append((drafts[-1], counts))
    rows = [tables.p((*text, *drafts[:i])) for i in range(depth + 1)]
    verdict = verify(
        rows, proposal, source, generation=1, round=number, first_position=first, bits=bits
    )
    return (*drafts[: verdict.accepted], verdict.token)


def check_text_law(vector: Vector) -> None:
    """The law of the emitted text, as fractions."""
    depths, longest = vector["depths"], vector["max_tokens"]
    if not depths or not all(0 <= depth <= MAX_STEPS for depth in [*depths, longest]):
        raise ValueError(f"depths, one at least, and max_tokens must lie in 0..{MAX_STEPS}")
    tables = Tables(vector)
    law = law_over_all_words(vector["bits"], lambda source: write_text(vector, tables, source))
    found = {" ".join(map(str, text)): law[text] for text in sorted(law)}
    expected = {text: Fraction(share) for text, share in vector["law"].items()}
    expect("law", found, expected)
