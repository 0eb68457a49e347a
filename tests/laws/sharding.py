"""The sharded drafter and verifier as rules of the decoder, and mutants of them.

A split is the widths of its shards; rows are cut by it, and put together nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, product
from unittest.mock import patch

from draftwire.exact import shards
from draftwire.exact.words import Domain
from spec.oracle.laws import Tokens
from tests.laws.decoding import Proposal, Round, Rules
from tests.laws.enumeration import place_of, words_under

Cut = Sequence[Sequence[int]]


def splits_of(vocab_size: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every split of a vocabulary into ``count`` shards, empty ones too, as widths."""
    for widths in product(range(vocab_size + 1), repeat=count):
        if sum(widths) == vocab_size:
            yield widths


def cut(row: Sequence[int], widths: tuple[int, ...]) -> list[list[int]]:
    """A row in shards."""
    ends = list(accumulate(widths))
    return [list(row[end - width : end]) for end, width in zip(ends, widths, strict=True)]


@contextmanager
def shard_primitives_by_law() -> Iterator[None]:
    """Let ``below`` and ``locate`` of the sharded form ask a point for their results."""
    with patch.object(shards, "below", words_under), patch.object(shards, "locate", place_of):
        yield


@dataclass(frozen=True)
class ShardRules(Rules):
    """The real rules over shards; a mutant overrides one method.

    U is read twice, for the shard and for the id inside it: the second time it is narrower.
    """

    widths: tuple[int, ...]
    shared_noise = True

    def draw(self, this: Round, index: int, counts: object, drafts: Tokens) -> int:
        """One draw over the shards (A28)."""
        row = cut(counts.dense(), self.widths)  # type: ignore[attr-defined]
        address = this.address(index, Domain.PROPOSAL)
        total = counts.total  # type: ignore[attr-defined]
        return shards.draw(row, this.source, address, total=total, bits=this.bits)

    def judge(self, this: Round, proposal: Proposal) -> Tokens:
        """Accept by the owner's numbers, correct by the residual masses (A29)."""
        rows = this.pair.rows(this.text, proposal)
        drafts = [token for token, _ in proposal]
        for index, (token, counts) in enumerate(proposal):
            p, q = cut(rows[index], self.widths), cut(counts.dense(), self.widths)
            if not self.accept(this, index, p, q, token, counts.total):
                return (*drafts[:index], self.correct(this, index, p, q, counts.total))
        address = this.address(len(drafts), Domain.BONUS)
        last = cut(rows[-1], self.widths)
        return (*drafts, self.target(this, last, address))

    def alone(self, this: Round) -> Tokens:
        """A round without a proposal."""
        address = this.address(0, Domain.TARGET_ONLY)
        return (self.target(this, cut(this.pair.p(this.text), self.widths), address),)

    def accept(self, this: Round, index: int, p: Cut, q: Cut, token: int, total: int) -> bool:
        """A18."""
        address = this.address(index, Domain.ACCEPTANCE)
        return shards.accept(p, q, token, this.source, address, total=total, bits=this.bits)

    def correct(self, this: Round, index: int, p: Cut, q: Cut, total: int) -> int:
        """A19."""
        address = this.address(index, Domain.CORRECTION)
        return shards.correction(p, q, this.source, address, total=total, bits=this.bits)

    def target(self, this: Round, p: Cut, address: object) -> int:
        """A20."""
        return shards.target(p, this.source, address, bits=this.bits)  # type: ignore[arg-type]


class LocallyNormalisedTarget(ShardRules):
    """Each shard normalises its own part of p, as if it were the whole."""

    def judge(self, this: Round, proposal: Proposal) -> Tokens:
        """Rows in which every shard with any mass weighs the same."""
        rows = this.pair.p

        def local(text: Tokens) -> list[int]:
            parts = cut(rows(text), self.widths)
            masses = [sum(part) or 1 for part in parts]
            whole = 1
            for mass in masses:
                whole *= mass
            pairs = zip(parts, masses, strict=True)
            return [weight * whole // mass for part, mass in pairs for weight in part]

        pair = type(this.pair)(local, this.pair.q)
        own = Round(pair, this.number, this.text, this.depth, this.source, this.bits)
        return super().judge(own, proposal)


class ShardChosenUniformly(ShardRules):
    """The shard of the correction is any that has residual mass, each as likely."""

    def correct(self, this: Round, index: int, p: Cut, q: Cut, total: int) -> int:
        """One of the shards with mass, then the id by the residual inside it."""
        mass = sum(map(sum, p))
        pairs = zip(p, q, strict=True)
        residual = [shards.residuals(own, counts, mass, total) for own, counts in pairs]
        full = [shard for shard, row in enumerate(residual) if any(row)]
        source, number = this.source, this.address(index, Domain.CORRECTION)
        chosen = full[shards.pick([1] * len(full), source, number, this.bits)]
        only = [row if shard == chosen else [0] * len(row) for shard, row in enumerate(residual)]
        return shards.target(only, source, this.address(index, Domain.TARGET_ONLY), bits=this.bits)


class ResidualOverTheSupport(ShardRules):
    """Ids outside the sparse support are left out of the residual."""

    def correct(self, this: Round, index: int, p: Cut, q: Cut, total: int) -> int:
        """As it is, on p cut down to the support."""
        pairs = zip(p, q, strict=True)
        inside = [[a if c else 0 for a, c in zip(*pair, strict=True)] for pair in pairs]
        mass = sum(map(sum, p))
        residual = [shards.residuals(a, c, mass, total) for a, c in zip(inside, q, strict=True)]
        rows = residual if any(map(any, residual)) else [list(own) for own in p]
        address = this.address(index, Domain.CORRECTION)
        return shards.target(rows, this.source, address, bits=this.bits)


class LocalAcceptance(ShardRules):
    """The owner of the draft holds p of its own shard against q, without the global mass."""

    def accept(self, this: Round, index: int, p: Cut, q: Cut, token: int, total: int) -> bool:
        """A18 with the mass of the owner's shard for A."""
        ends = list(accumulate(self.widths))
        owner = next(shard for shard, end in enumerate(ends) if token < end)
        own = [row if shard == owner else [0] * len(row) for shard, row in enumerate(p)]
        return super().accept(this, index, own, q, token, total)


def locally_normalised(weights: Cut, total: int) -> list[list[int]]:
    """Mutant of A26: each shard shares out its part of the tickets by itself."""
    full = sum(any(own) for own in weights)
    return [
        shards.allocate([own], total // full)[0] if any(own) else [0] * len(own) for own in weights
    ]


def leftovers_by_shard(weights: Cut, total: int) -> list[list[int]]:
    """Mutant of A26: each shard gives its own leftovers to its own largest remainders."""
    masses = [sum(own) for own in weights]
    shares = shards.allocate([masses], total)[0]
    return [
        shards.allocate([own], share)[0] if share else [0] * len(own)
        for own, share in zip(weights, shares, strict=True)
    ]


MUTANTS_OF_LAWS: tuple[type[ShardRules], ...] = (
    LocallyNormalisedTarget,
    ShardChosenUniformly,
    ResidualOverTheSupport,
    LocalAcceptance,
)
MUTANTS_OF_COUNTS: tuple[Callable[[Cut, int], list[list[int]]], ...] = (
    locally_normalised,
    leftovers_by_shard,
)
