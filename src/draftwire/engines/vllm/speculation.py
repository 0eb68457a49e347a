"""The requests that an engine is decoding, each with its session at the drafter and its words.

A round of a request ends with the token that is committed after the accepted drafts; the next one
begins when drafts are asked for, or else when its first row is judged. Nothing here knows vLLM.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftwire.engines.vllm.batch_breaker import BatchBreaker
from draftwire.engines.vllm.metrics import Tally
from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact.words import Address, Domain, KeyedWords, RequestKey, WordSource
from draftwire.kernels import cpu
from draftwire.kernels.rows import widened
from draftwire.session.proposal import Proposal
from draftwire.verifier.breaker import Choice
from draftwire.verifier.client import DraftClient
from draftwire.verifier.context import context_version
from draftwire.verifier.drafter import DraftRequest
from draftwire.verifier.miss import Miss, MissReason
from draftwire.verifier.no_drafter import NoDrafter
from draftwire.verifier.request import ClientRequest
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome

Words = Callable[[RequestKey], WordSource]
SEED_LIMIT: Final = 1 << 128
_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class ActiveRequest:
    """One request. ``stream`` tells its incarnations apart: no word is used for two of them."""

    words: WordSource
    drafting: DraftRequest
    committed: int
    key: RequestKey
    stream: int = 0
    settings: object = ()  # what p depends on beside the ids, as it was last said
    proposal: Proposal | None = None
    begun: bool = False  # the present round, by a proposal that was asked for


@dataclass(frozen=True, slots=True)
class RoundResult:
    """How a round ended: the committed tokens, and what the drafter is told of them."""

    outcome: Outcome
    accepted: int
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class ProposeRequest:
    """One row that may be drafted for: the policy at most, its depth fixed from lengths alone.

    bound: its text is to repeat from its seed, so that no time may decide which rounds are drafted.
    """

    name: str
    policy: ProposalPolicy
    bound: bool = False


@dataclass(slots=True)
class SpeculationState:
    """All requests of one engine. client: None drafts for nobody. words: stands in, for tests.

    pace: pauses drafting that does not pay; None = never.
    """

    client: DraftClient | None
    tally: Tally = field(default_factory=Tally)
    words: Words = KeyedWords
    pace: BatchBreaker | None = None
    requests: dict[str, ActiveRequest] = field(default_factory=dict)

    def begin(
        self,
        name: str,
        tokens: Sequence[int],
        seed: int | None,
        *,
        drafted: bool,
        settings: object = (),
    ) -> ActiveRequest:
        """Return the request whose committed tokens are ``tokens``, made anew if they went back.

        tokens: prompt and output so far. seed: any integer; None = 128 fresh random bits. drafted:
        whether the drafter can read the prompt. settings: what p depends on beside the ids.
        """
        active = self.requests.get(name)
        if active is not None and active.committed == len(tokens):
            return active
        stream = 0
        if active is not None:  # the engine took tokens back, or the prompt has grown
            stream = active.stream + 1
            self.finish(name)
        chosen = int.from_bytes(os.urandom(16), "little") if seed is None else seed % SEED_LIMIT
        key = RequestKey(chosen, stream)
        client = self.client if drafted else None
        if client is None or not all(0 <= token < client.vocab_size for token in tokens):
            drafting: DraftRequest = NoDrafter()
        else:
            drafting = client.open(tokens, key.proposal_key)
        active = ActiveRequest(self.words(key), drafting, len(tokens), key, stream)
        self.use_settings(active, settings)
        self.requests[name] = active
        self.tally.set("sessions", len(self.requests))
        return active

    def judge(
        self,
        active: ActiveRequest,
        scores: NDArray[np.float32],
        scheduled: Sequence[int],
        *,
        greedy: bool,
    ) -> list[int]:
        """Return the tokens that this step commits: accepted drafts and what follows them.

        scores: (n + 1, V) logits of p after every processor, row i after the first i ``scheduled``
        drafts; greedy: p is a point mass on the largest. Law: that of the target alone, whatever
        the drafts. Fewer drafts may be scheduled than proposed, by a budget or because a grammar
        forbids the next one: that next one is judged all the same, against the row that stands
        where it stood. So whether a draft is judged never depends on the draft itself.
        """
        began = time.perf_counter()
        if not active.begun:
            active.drafting.skip()
        proposal = active.proposal
        same = 0 if proposal is None else _common(proposal.tokens, scheduled)
        drafts = () if proposal is None else proposal.tokens
        rows = scores[: same + 1]
        sound, refusal = _distributions(rows, greedy)
        if refusal is not None and not len(sound):
            ended = self._fallback(drafts, rows[0])
        elif proposal is None:
            ended = RoundResult(Outcome.TARGET_ONLY, 0, [self._alone(active, sound[0], greedy)])
        else:
            ended = self._verified(active, proposal, sound, greedy)
        if refusal is not None and len(sound) in (0, ended.accepted):
            _LOG.error("p of a request is no distribution: %s", refusal)
            self.tally.add("refused_rows")
        active.drafting.commit(ended.outcome, ended.accepted, ended.tokens)
        active.committed += len(ended.tokens)
        active.proposal, active.begun = None, False
        self.tally.add("rounds")
        self.tally.add("verify_seconds", time.perf_counter() - began)
        return ended.tokens

    def propose(
        self, wishes: Sequence[ProposeRequest], deadline: float
    ) -> dict[str, tuple[int, ...]]:
        """Begin the next round of every row, asking for all in one go; returns the drafts by name.

        deadline: seconds from now, for all of it. Nothing that a drafter or a network does raises.
        """
        client = self.client
        asked = [
            (wish, self.requests[wish.name], request)
            for wish in self._admitted(wishes)
            if isinstance(request := self.requests[wish.name].drafting, ClientRequest)
        ]
        if client is None or not asked:
            return {}
        began = time.perf_counter()
        audited = sum(request.traffic.audit_seconds for _, _, request in asked)
        sent = sum(request.traffic.sent for _, _, request in asked)
        received = sum(request.traffic.received for _, _, request in asked)
        policies = [(request, self._offered(wish.policy)) for wish, _, request in asked]
        drafts: dict[str, tuple[int, ...]] = {}
        results = client.propose_all(policies, client.clock() + deadline)
        for (wish, active, _), drafted in zip(asked, results, strict=True):
            active.begun = True
            if isinstance(drafted, Miss):
                self.tally.add("misses", value=drafted.reason.value)
                continue
            active.proposal = drafted
            drafts[wish.name] = drafted.tokens
            self.tally.add("drafted_rounds")
            self.tally.add("drafted_tokens", len(drafted.tokens))
        tally, seconds = self.tally, time.perf_counter() - began
        if self.pace is not None:
            self.pace.asked(seconds, mixed=len(asked) < len(wishes))
        tally.add("drafting_steps")
        tally.add("propose_seconds", seconds)
        tally.add("audit_seconds", sum(r.traffic.audit_seconds for _, _, r in asked) - audited)
        tally.add("sent_bytes", sum(r.traffic.sent for _, _, r in asked) - sent)
        tally.add("received_bytes", sum(r.traffic.received for _, _, r in asked) - received)
        return drafts

    def use_settings(self, active: ActiveRequest, settings: object) -> None:
        """A request's p depends on these beside the ids; a proposal asked under others is dropped.

        settings: compared by value, and said as their ``repr``.
        """
        active.settings = settings
        active.drafting.use_context(context_version(active.key, repr(settings).encode()))
        if active.proposal is not None:
            self.tally.add("truncated_tokens", len(active.proposal.tokens))
            active.proposal = None

    def finish(self, name: str) -> None:
        """The request has ended, however it did: free what it holds here and at the drafter."""
        active = self.requests.pop(name, None)
        if active is None:
            return
        if active.proposal is not None:
            self.tally.add("truncated_tokens", len(active.proposal.tokens))
        active.drafting.close()
        self.tally.set("sessions", len(self.requests))

    def close(self) -> None:
        """End every request, and the connection."""
        for name in list(self.requests):
            self.finish(name)
        if self.client is not None:
            self.client.close()
        self.tally.close()

    # inside

    def _admitted(self, wishes: Sequence[ProposeRequest]) -> list[ProposeRequest]:
        """Return the rows that the pace lets ask; the others' next round is target-only."""
        if self.pace is None or self.client is None or not wishes:
            return list(wishes)
        choice = self.pace.admits(len(wishes))
        if choice is Choice.DRAFT:
            return list(wishes)
        reason = MissReason.BASELINE if choice is Choice.SAMPLE else MissReason.BREAKER_OPEN
        for wish in wishes:
            if not wish.bound:
                self.tally.add("misses", value=reason.value)
        return [wish for wish in wishes if wish.bound]

    def _offered(self, policy: ProposalPolicy) -> ProposalPolicy:
        """Narrow a sparse policy to what HELLO agreed, so that a wide wish still drafts."""
        agreed = None if self.client is None else self.client.agreed
        if agreed is None:
            return policy
        support = min(policy.support, agreed.max_support) if policy.support else 0
        return replace(policy, support=support, depth=min(policy.depth, agreed.max_depth))

    def _alone(self, active: ActiveRequest, row: NDArray[Any], greedy: bool) -> int:
        """Draw one token from p alone (A20)."""
        if greedy:
            return int(np.argmax(row))
        drafting = active.drafting
        address = Address(drafting.generation, drafting.round, active.committed, Domain.TARGET_ONLY)
        return cpu.target(row, active.words.words(address))

    def _fallback(self, drafts: Sequence[int], scores: NDArray[np.float32]) -> RoundResult:
        """Commit the largest finite score of a row that is no distribution: vLLM needs a token.

        Where that is the first draft, the drafter is told that it stands: a correction is never the
        draft that was rejected (P25).
        """
        token = int(np.argmax(np.where(np.isfinite(scores), scores, -np.inf)))
        self.tally.add("truncated_tokens", len(drafts))
        if not drafts:
            return RoundResult(Outcome.TARGET_ONLY, 0, [token])
        if token == drafts[0]:
            return RoundResult(Outcome.ENDED, 1, [token])
        return RoundResult(Outcome.CORRECTION, 0, [token])

    def _verified(
        self, active: ActiveRequest, proposal: Proposal, rows: NDArray[Any], greedy: bool
    ) -> RoundResult:
        """Judge as many drafts as there are rows for; the bonus needs a row of its own.

        rows: (n, V), n >= 1; weights of p, or scores where greedy. ENDED: all that had a row are
        accepted and no row stands behind them.
        """
        depth = min(len(rows), len(proposal.tokens))
        drafts = proposal.tokens[:depth]
        if greedy:
            largest = [int(np.argmax(row)) for row in rows]
            accepted = _common(drafts, largest)
            token = largest[accepted] if accepted < len(largest) else None
        else:
            accepted, token = self._sampled(active, proposal, rows, depth)
        self._count(proposal, depth, accepted)
        if token is None:
            return RoundResult(Outcome.ENDED, accepted, list(drafts))
        whole = accepted == len(proposal.tokens)
        outcome = Outcome.BONUS if whole else Outcome.CORRECTION
        return RoundResult(outcome, accepted, [*drafts[:accepted], token])

    def _sampled(
        self, active: ActiveRequest, proposal: Proposal, rows: NDArray[np.float64], depth: int
    ) -> tuple[int, int | None]:
        """Return how many drafts are accepted, and the token after them if it has a row."""
        bonus = len(rows) > depth
        if not bonus:  # any distribution: what is drawn from it is not used
            rows = np.concatenate([rows, np.ones((1, rows.shape[1]))])
        verdict = cpu.verify(
            rows,
            proposal.tokens[:depth],
            [widened(row, rows.shape[1]) for row in proposal.rows[:depth]],
            active.words,
            generation=active.drafting.generation,
            round=active.drafting.round,
            first_position=active.committed,
        )
        return verdict.accepted, None if verdict.accepted == depth and not bonus else verdict.token

    def _count(self, proposal: Proposal, depth: int, accepted: int) -> None:
        self.tally.add("verified_tokens", depth)
        self.tally.add("truncated_tokens", len(proposal.tokens) - depth)
        self.tally.add("accepted_tokens", accepted)
        for position in range(accepted):
            self.tally.add("accepted_position", value=str(position))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _distributions(
    scores: NDArray[np.float32], greedy: bool
) -> tuple[NDArray[Any], ArithmeticRefusalError | None]:
    """Return the rows before the first that is no distribution, and why that one is refused.

    Rows as they are judged: weights of p (A17), or the scores themselves where greedy (A21).
    """
    rows: NDArray[Any] = scores if greedy else np.empty(scores.shape)
    for index, score in enumerate(scores):
        try:
            if not greedy:
                rows[index] = cpu.weights_of(score)
            elif np.isnan(score).any():
                raise ArithmeticRefusalError(RefusalCode.NON_FINITE, "a score is NaN")
        except ArithmeticRefusalError as error:
            return rows[:index], error
    return rows, None
