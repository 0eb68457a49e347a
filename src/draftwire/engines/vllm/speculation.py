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

from draftwire.engines.vllm.batch_breaker import BatchBreaker
from draftwire.engines.vllm.metrics import WorkerMetrics
from draftwire.engines.vllm.states import RunnerStates
from draftwire.errors import RefusalCode
from draftwire.exact.words import KeyedWords, RequestKey, WordSource
from draftwire.kernels.protocol import Kernels, Round
from draftwire.kernels.registry import kernels_for
from draftwire.session.proposal import Proposal
from draftwire.verifier.breaker import Choice, Gain, RequestBreaker
from draftwire.verifier.client import DraftClient
from draftwire.verifier.context import context_version
from draftwire.verifier.drafter import DraftRequest
from draftwire.verifier.judge import Judgement, judge
from draftwire.verifier.miss import Miss
from draftwire.verifier.no_drafter import NoDrafter
from draftwire.verifier.request import ClientRequest
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Outcome

Words = Callable[[RequestKey], WordSource]
SEED_LIMIT: Final = 1 << 128
_NO_DISTRIBUTION: Final = {RefusalCode.NON_FINITE, RefusalCode.ZERO_MASS}  # a row of p
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
    processors: bytes = b""  # what of them the drafter is told, for its policies
    breaker: RequestBreaker | None = None  # of all incarnations
    proposal: Proposal | None = None
    begun: bool = False  # the present round, by a proposal that was asked for
    asked: int = 0  # drafts, for that round, at most
    came: bool | None = None  # whether they have; None = nothing was asked for


@dataclass(frozen=True, slots=True)
class ProposeRequest:
    """One row that may be drafted for: the policy at most, its depth fixed from lengths alone.

    seeded: its text is to repeat from its seed, so no time may decide which rounds are drafted.
    """

    name: str
    policy: ProposalPolicy
    seeded: bool = False


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """One request's rows of a step: ``len(scheduled) + 1`` of them from ``first_row`` on.

    scheduled: the drafts that the engine had room for. greedy: p is a point mass on the largest.
    """

    active: ActiveRequest
    first_row: int
    scheduled: Sequence[int]
    greedy: bool


@dataclass(slots=True)
class SpeculationState:
    """All requests of one engine.

    client: None = no request is drafted for. words: stands in, for tests. breaker: pauses drafting
    that does not pay; None = never. states: of the target's requests, where the drafter reads them.
    kernels: of where the scores lie.
    """

    client: DraftClient | None
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    words: Words = KeyedWords
    breaker: BatchBreaker | None = None
    states: RunnerStates | None = None
    kernels: Kernels[Any] = field(default_factory=lambda: kernels_for("auto", "cpu"))
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
        breaker = None if self.breaker is None or active is not None else self.breaker.open()
        if active is not None:  # the engine took tokens back, or the prompt has grown
            stream = active.stream + 1
            breaker, active.breaker = active.breaker, None
            self.finish(name)
        chosen = int.from_bytes(os.urandom(16), "little") if seed is None else seed % SEED_LIMIT
        key = RequestKey(chosen, stream)
        client = self.client if drafted else None
        if client is None or not all(0 <= token < client.vocab_size for token in tokens):
            drafting: DraftRequest = NoDrafter()
        else:
            drafting = client.open(tokens, key.proposal_key)
            if self.states is not None:
                drafting.use_states(self.states.source(name))
        active = ActiveRequest(self.words(key), drafting, len(tokens), key, stream, breaker=breaker)
        self.use_settings(active, settings)
        self.requests[name] = active
        self.metrics.set("sessions", len(self.requests))
        return active

    def verify_step(self, scores: Any, requests: Sequence[VerifyRequest]) -> list[tuple[int, ...]]:
        """Return the tokens that a step commits, a request: accepted drafts and what follows them.

        scores: (R, V) logits of p after every processor, an array or a tensor, judged where it
        lies; a request's row i is that after the first i of its scheduled drafts. Law: that of the
        target alone, whatever the drafts. Fewer drafts may be scheduled than proposed, by a budget
        or because a grammar forbids the next one: that next one is judged all the same, against the
        row that stands where it stood. So whether a draft is judged never depends on the draft
        itself. Errors: ArithmeticRefusalError ZERO_Q, ZERO_RESIDUAL, OUT_OF_RANGE.
        """
        began = time.perf_counter()
        rounds = [_round_of(each) for each in requests]
        judgements, gains = [], {}
        for request, each, judged in zip(
            requests, rounds, judge(self.kernels, scores, rounds), strict=True
        ):
            if request.active.proposal is not None:
                self._count(len(request.active.proposal.tokens), len(each.tokens), judged)
            refused = judged.refusal is not None
            judgements.append(self._fallback(scores, each, judged) if refused else judged)
        for request, judged in zip(requests, judgements, strict=True):
            active = request.active
            if active.breaker is not None:
                gain = Gain(len(judged.tokens), active.asked + 1, came=active.came)
                gains[active.breaker] = gain
            active.drafting.commit(judged.outcome, judged.accepted, judged.tokens)
            active.committed += len(judged.tokens)
            active.proposal, active.begun, active.asked, active.came = None, False, 0, None
        self.metrics.add("rounds", len(requests))
        if self.breaker is not None:
            self.breaker.ended(gains)
            self.metrics.set("paused_requests", self.breaker.paused_requests)
        self.metrics.add("verify_seconds", time.perf_counter() - began)
        return [judged.tokens for judged in judgements]

    def propose(
        self, wanted: Sequence[ProposeRequest], deadline: float
    ) -> dict[str, tuple[int, ...]]:
        """Begin the next round of every row, asking for all in one go; returns the drafts by name.

        deadline: seconds from now, for all of it. Nothing that a drafter or a network does raises.
        """
        client = self.client
        admitted, choices = self._admitted(wanted)
        asked = [
            (each, self.requests[each.name], request)
            for each in admitted
            if isinstance(request := self.requests[each.name].drafting, ClientRequest)
        ]
        if client is None or not asked:
            return {}
        began = time.perf_counter()
        audited = sum(request.traffic.audit_seconds for _, _, request in asked)
        sent = sum(request.traffic.sent for _, _, request in asked)
        received = sum(request.traffic.received for _, _, request in asked)
        policies = [(request, self._offered(each.policy)) for each, _, request in asked]
        drafts: dict[str, tuple[int, ...]] = {}
        results = client.propose_all(policies, client.clock() + deadline)
        for (each, active, _), drafted in zip(asked, results, strict=True):
            active.begun, active.asked = True, each.policy.depth
            if isinstance(drafted, Miss):
                active.came = False if drafted.asked else None
                self.metrics.add("misses", value=drafted.reason.value)
                continue
            active.proposal, active.came = drafted, True
            drafts[each.name] = drafted.tokens
            self.metrics.add("drafts")
            self.metrics.add("proposed_tokens", len(drafted.tokens))
        metrics, seconds = self.metrics, time.perf_counter() - began
        if self.breaker is not None:
            self.breaker.asked(seconds, mixed=Choice.DRAFT not in choices)
        metrics.add("drafting_steps")
        metrics.add("propose_seconds", seconds)
        metrics.add("audit_seconds", sum(r.traffic.audit_seconds for _, _, r in asked) - audited)
        metrics.add("sent_bytes", sum(r.traffic.sent for _, _, r in asked) - sent)
        metrics.add("received_bytes", sum(r.traffic.received for _, _, r in asked) - received)
        return drafts

    def use_settings(self, active: ActiveRequest, settings: object) -> None:
        """A request's p depends on these beside the ids; a proposal asked under others is dropped.

        settings: compared by value, and said as their ``repr``.
        """
        active.settings = settings
        active.drafting.use_context(context_version(active.key, repr(settings).encode()))
        if active.proposal is not None:
            self.metrics.add("truncated_tokens", len(active.proposal.tokens))
            active.proposal, active.came = None, False

    def finish(self, name: str) -> None:
        """The request has ended, however it did: free what it holds here and at the drafter."""
        active = self.requests.pop(name, None)
        if active is None:
            return
        if active.proposal is not None:
            self.metrics.add("truncated_tokens", len(active.proposal.tokens))
        active.drafting.close()
        if active.breaker is not None:
            active.breaker.close()
        self.metrics.set("sessions", len(self.requests))

    def close(self) -> None:
        """End every request, and the connection."""
        for name in list(self.requests):
            self.finish(name)
        if self.client is not None:
            self.client.close()
        self.metrics.close()

    # inside

    def _admitted(
        self, wanted: Sequence[ProposeRequest]
    ) -> tuple[list[ProposeRequest], list[Choice]]:
        """Return the rows that the breaker lets ask, and what it has said of those in its hands.

        The others' next round is target-only.
        """
        asking = {
            each.name: breaker
            for each in wanted
            if not each.seeded
            and (breaker := self.requests[each.name].breaker) is not None
            and isinstance(self.requests[each.name].drafting, ClientRequest)
        }
        if self.breaker is None or not asking:
            return list(wanted), []
        choices = self.breaker.admits(list(asking.values()), len(wanted))
        left_out = {
            name: choice
            for name, choice in zip(asking, choices, strict=True)
            if choice is not Choice.DRAFT
        }
        for choice in left_out.values():
            self.metrics.add("misses", value=choice.reason.value)
        return [each for each in wanted if each.name not in left_out], choices

    def _offered(self, policy: ProposalPolicy) -> ProposalPolicy:
        """Narrow a sparse policy to what HELLO agreed, so that a wide request still drafts."""
        agreed = None if self.client is None else self.client.agreed
        if agreed is None:
            return policy
        support = min(policy.support, agreed.max_support) if policy.support else 0
        return replace(policy, support=support, depth=min(policy.depth, agreed.max_depth))

    def _fallback(self, scores: Any, each: Round, judged: Judgement) -> Judgement:
        """Return how a round ends at a row that is no distribution; raise for any other refusal.

        What was accepted before that row stands. Where that is nothing, the row's largest finite
        score does, since vLLM needs a token; where it is the first draft, the drafter is told that
        this one stands: a correction is never the draft that was rejected (P25).
        """
        refusal = judged.refusal
        assert refusal is not None
        if refusal.code not in _NO_DISTRIBUTION:
            raise refusal
        _LOG.error("p of a request is no distribution: %s", refusal)
        self.metrics.add("refused_rows")
        if judged.accepted:
            return judged
        row = self.kernels.host_row(scores, each.first_row)
        token = int(np.argmax(np.where(np.isfinite(row), row, -np.inf)))
        if not each.tokens:
            return replace(judged, outcome=Outcome.TARGET_ONLY, tokens=(token,))
        if token == each.tokens[0]:
            return replace(judged, outcome=Outcome.ENDED, accepted=1, tokens=(token,))
        return replace(judged, outcome=Outcome.CORRECTION, tokens=(token,))

    def _count(self, proposed: int, depth: int, judged: Judgement) -> None:
        """Count the drafts of a round; those from a refused row on were held against no p."""
        verified = depth if judged.refusal is None else judged.accepted
        self.metrics.add("draft_tokens", verified)
        self.metrics.add("truncated_tokens", proposed - verified)
        self.metrics.add("accepted_tokens", judged.accepted)
        for position in range(judged.accepted):
            self.metrics.add("accepted_tokens_per_pos", value=str(position))


def _round_of(request: VerifyRequest) -> Round:
    """Return what is judged of a request: a draft for each row, and the bonus a row of its own."""
    active, proposal = request.active, request.active.proposal
    if not active.begun:
        active.drafting.skip()
    drafts = () if proposal is None else proposal.tokens
    row_count = _common(drafts, request.scheduled) + 1
    return Round(
        tokens=drafts[:row_count],
        rows=() if proposal is None else proposal.rows[:row_count],
        first_row=request.first_row,
        row_count=row_count,
        words=active.words,
        generation=active.drafting.generation,
        round=active.drafting.round,
        first_position=active.committed,
        greedy=request.greedy,
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
