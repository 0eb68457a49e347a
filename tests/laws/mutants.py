"""Rules that look right and are not: each changes one thing and must be rejected by a law test.

A mutant overrides one method of :class:`tests.laws.decoding.Rules`. Those that use one address
twice set ``shared_noise``; the enumeration then gives the second use what the first one left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import draftwire.exact.verify as real
from draftwire.exact.counts import Counts
from draftwire.exact.words import Address, Domain, WordSource
from spec.oracle.laws import Tokens
from tests.laws.decoding import Proposal, Round, Rules


@dataclass(frozen=True)
class Redirected:
    """A word source that gives one domain the words of another."""

    source: WordSource
    domains: dict[Domain, Domain]

    def words(self, address: Address) -> Iterator[int]:
        """The words of the other domain's address."""
        domain = self.domains.get(address.domain, address.domain)
        return self.source.words(replace(address, domain=domain))


class CorrectionSharesTheProposalsNoise(Rules):
    """The correction is drawn with the word that drew the rejected token (R10)."""

    shared_noise = True

    def judge(self, this: Round, proposal: Proposal) -> Tokens:
        """As it is, but for the domain."""
        source = Redirected(this.source, {Domain.CORRECTION: Domain.PROPOSAL})
        return super().judge(replace(this, source=source), proposal)


class AcceptanceSharesTheProposalsNoise(Rules):
    """The draft is judged with the word that drew it."""

    shared_noise = True

    def judge(self, this: Round, proposal: Proposal) -> Tokens:
        """As it is, but for the domain."""
        source = Redirected(this.source, {Domain.ACCEPTANCE: Domain.PROPOSAL})
        return super().judge(replace(this, source=source), proposal)


class CorrectionSharesTheAcceptancesNoise(Rules):
    """The correction is drawn with the word that rejected the draft (R11)."""

    shared_noise = True

    def judge(self, this: Round, proposal: Proposal) -> Tokens:
        """As it is, but for the domain."""
        source = Redirected(this.source, {Domain.CORRECTION: Domain.ACCEPTANCE})
        return super().judge(replace(this, source=source), proposal)


class DrawnFromAnother(Rules):
    """The token is drawn from other counts than the declared ones; ``drawn`` says from which."""

    def __init__(self, drawn: Callable[[Tokens, Counts], Counts]) -> None:
        self.drawn = drawn

    def draw(self, this: Round, index: int, counts: Counts, drafts: Tokens) -> int:
        """One draw, from the wrong row."""
        return super().draw(this, index, self.drawn((*this.text, *drafts), counts), drafts)


class IndependentPositions(Rules):
    """Every position is drawn as if the token before it had been 0 (M55)."""

    def draw(self, this: Round, index: int, counts: Counts, drafts: Tokens) -> int:
        """One draw, from the row of another context."""
        unconditioned = this.pair.q((*this.text, *(0 for _ in drafts)))
        return super().draw(this, index, unconditioned, drafts)


class RedrawUnderAReusedKey(Rules):
    """A retry draws again with the same words, in another model state, and the first q is used."""

    shared_noise = True

    def __init__(self, retried: Callable[[Tokens, Counts], Counts]) -> None:
        self.retried = retried

    def draw(self, this: Round, index: int, counts: Counts, drafts: Tokens) -> int:
        """Draw twice at one address and keep the second token."""
        super().draw(this, index, counts, drafts)
        return super().draw(this, index, self.retried((*this.text, *drafts), counts), drafts)


class OtherJudgement(Rules):
    """The verification loop once more, with its two steps apart so that a mutant can change one."""

    def judge(self, this: Round, proposal: Proposal) -> Tokens:
        """A18 to A20."""
        rows = this.pair.rows(this.text, proposal)
        accepted: Tokens = ()
        for index, (token, counts) in enumerate(proposal):
            if not self.accept(this, index, rows[index], counts, token):
                return (*accepted, self.correct(this, index, rows[index], counts, token))
            accepted = (*accepted, token)
        words = this.source.words(this.address(len(proposal), Domain.BONUS))
        return (*accepted, real.target(rows[-1], words, this.bits))

    def accept(self, this: Round, index: int, p: list[int], counts: Counts, token: int) -> bool:
        """A18."""
        words = this.source.words(this.address(index, Domain.ACCEPTANCE))
        return real.accept(p, counts, token, words, this.bits)

    def correct(self, this: Round, index: int, p: list[int], counts: Counts, token: int) -> int:
        """A19."""
        words = this.source.words(this.address(index, Domain.CORRECTION))
        return real.target(self.residual(p, counts, token), words, this.bits)

    def residual(self, p: list[int], counts: Counts, token: int) -> list[int]:
        """Weights of max(p - q, 0)."""
        return [max(a * counts.total - counts.of(v) * sum(p), 0) for v, a in enumerate(p)]


class ResidualOverTheSparseSupport(OtherJudgement):
    """Tokens outside the support of q are forgotten in the residual."""

    def residual(self, p: list[int], counts: Counts, token: int) -> list[int]:
        """The residual on the support alone (p itself where nothing is left there)."""
        whole = super().residual(p, counts, token)
        inside = [r if counts.of(v) else 0 for v, r in enumerate(whole)]
        return inside if any(inside) else p


class ResidualFromQOfXAlone(OtherJudgement):
    """Only q(x) was sent: the residual takes it off p(x) and leaves the rest of p as it is."""

    def residual(self, p: list[int], counts: Counts, token: int) -> list[int]:
        """P with the rejected token's own excess taken away."""
        whole = super().residual(p, counts, token)
        return [whole[v] if v == token else a * counts.total for v, a in enumerate(p)]


class ResidualOfAPointMass(OtherJudgement):
    """The q of a token was lost: its residual takes it for certain, its acceptance not (M57)."""

    def residual(self, p: list[int], counts: Counts, token: int) -> list[int]:
        """P without the rejected token."""
        return [0 if v == token else a for v, a in enumerate(p)]


class ForbiddenTokenDrawnAnew(OtherJudgement):
    """A draft that the grammar forbids is no rejection but a new draw from the masked p (G21)."""

    def correct(self, this: Round, index: int, p: list[int], counts: Counts, token: int) -> int:
        """Draw from p where p(x) = 0."""
        if p[token]:
            return super().correct(this, index, p, counts, token)
        words = this.source.words(this.address(index, Domain.CORRECTION))
        return real.target(p, words, this.bits)


class ZeroFilledTopK(OtherJudgement):
    """Q is cut to its k largest, zeros elsewhere; the draw is renormalised, what is sent not."""

    def __init__(self, k: int) -> None:
        self.k = k

    def top(self, counts: Counts) -> dict[int, int]:
        """The k largest counts as they are."""
        order = sorted(counts.ids, key=lambda v: (-counts.of(v), v))
        return {v: counts.of(v) for v in order[: self.k]}

    def draw(self, this: Round, index: int, counts: Counts, drafts: Tokens) -> int:
        """Draw from the k largest, renormalised."""
        top = sorted(self.top(counts).items())
        kept = Counts(
            counts.vocab_size,
            sum(c for _, c in top),
            tuple(v for v, _ in top),
            tuple(c for _, c in top),
        )
        return super().draw(this, index, kept, drafts)

    def residual(self, p: list[int], counts: Counts, token: int) -> list[int]:
        """Max(p - q, 0) with zeros filled in; acceptance has the q before the cut."""
        top = self.top(counts)
        return [max(a * counts.total - top.get(v, 0) * sum(p), 0) for v, a in enumerate(p)]


class TieIsAccepted(OtherJudgement):
    """Acceptance by the first word alone, and a word equal to the threshold accepts (D5)."""

    def accept(self, this: Round, index: int, p: list[int], counts: Counts, token: int) -> bool:
        """U <= p/q on the grid of one word."""
        word = next(iter(this.source.words(this.address(index, Domain.ACCEPTANCE))))
        ratio = Fraction(p[token] * counts.total, counts.of(token) * sum(p))
        return Fraction(word, 1 << this.bits) <= ratio

    def residual(self, p: list[int], counts: Counts, token: int) -> list[int]:
        """The residual; p where nothing is left (the wrong acceptance can lead there)."""
        whole = super().residual(p, counts, token)
        return whole if any(whole) else p


class Retrospective(Rules):
    """The depth is decided after the draw: ``admitted`` looks at the drafts and cuts them."""

    def __init__(self, admitted: Callable[[Proposal], int]) -> None:
        self.admitted = admitted

    def emit(self, this: Round) -> Tokens:
        """Verify what was admitted; go on alone where nothing was."""
        proposal = self.propose(this)
        kept = proposal[: self.admitted(proposal)]
        return self.judge(this, kept) if kept else self.alone(this)
