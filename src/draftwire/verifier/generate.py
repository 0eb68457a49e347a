"""The round loop: ask, score, verify, commit; what comes out has the law of the target alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Generic, Self

from draftwire.errors import ArithmeticRefusalError
from draftwire.exact.words import KeyedWords, WordSource
from draftwire.kernels.cpu.kernels import prepare
from draftwire.kernels.prepare import prepare_kernels
from draftwire.kernels.protocol import Round
from draftwire.kernels.registry import kernels_for
from draftwire.session.proposal import Proposal
from draftwire.session.reasons import DropReason
from draftwire.text.detokenizer import Decode
from draftwire.verifier.breaker import BreakerState, Choice, Gain, Paused, RequestBreaker
from draftwire.verifier.context import RequestContext
from draftwire.verifier.drafter import Drafter, DraftRequest, SendsStates
from draftwire.verifier.emission import KIND_AFTER, Emission, Kind
from draftwire.verifier.engine import Context, HasDevice, TargetEngine, YieldsStates
from draftwire.verifier.judge import Judgement, judge
from draftwire.verifier.log import breaker_changed
from draftwire.verifier.mirror import mirrored
from draftwire.verifier.miss import Drafted, Miss, MissReason
from draftwire.verifier.no_drafter import NoDrafter
from draftwire.verifier.notes import note_of
from draftwire.verifier.report import Report
from draftwire.verifier.request_check import check_request, prompt_ids, with_depth
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.states import RequestStates
from draftwire.verifier.stop import Ends, Finish, StopRules
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import LayoutSet, Outcome


class Generation(Generic[Context], Iterator[Emission]):
    """One request, driven by iterating over it; ``report`` is complete when the text has ended.

    Close it (or leave its ``with`` block) to abandon the text early: both sides then free what it
    held, and nothing more is emitted.
    """

    def __init__(
        self,
        target: TargetEngine[Context],
        drafter: Drafter | None,
        prompt: Sequence[int],
        sampling: Sampling,
        policy: ProposalPolicy | None,
        *,
        decode: Decode | None = None,
        ends: Ends | None = None,
        on_emission: Callable[[Emission], None] | None = None,
        words: WordSource | None = None,
        kernels: str = "auto",
    ) -> None:
        """See :func:`generate`."""
        prompt = prompt_ids(prompt)
        check_request(target, drafter, prompt, sampling, policy)
        prepare()
        if isinstance(target, HasDevice):
            layouts = LayoutSet(0) if policy is None else LayoutSet(1 << policy.layout)
            support = 1 if policy is None else policy.support
            prepare_kernels(kernels, target.device, layouts, support, target.row_width)
        key = sampling.request_key()
        self.report = Report(prompt_tokens=len(prompt))
        self._target = target
        self._policy = policy
        self._greedy = sampling.greedy
        self._kernels = kernels
        self._committed = prompt.copy()
        self._stop = StopRules(
            end_tokens=target.end_tokens,
            max_tokens=sampling.max_tokens,
            room=target.max_context - len(prompt),
            stop=sampling.stop,
            decode=decode,
            ends=ends,
            prompt=prompt,
        )
        self._words = KeyedWords(key) if words is None else words
        self._context = RequestContext(target, key, sampling, target.end_tokens)
        self._on_emission = on_emission
        context = target.open(prompt, sampling)  # first: it may refuse, and no slot is taken then
        self.drafting: DraftRequest = (
            NoDrafter()
            if drafter is None
            else self._begin_drafting(drafter, context, prompt, key.proposal_key)
        )
        self._drafted = drafter is not None
        breaker = None if drafter is None else drafter.breaker
        self.breaker: RequestBreaker | None = None if breaker is None else breaker.open()
        self._proposal: Proposal | None = None  # of the round that is on
        self._asked = 0  # drafts, for that round, at most
        self._came: bool | None = None  # whether they have; None = nothing was asked for
        self.choice: Choice | None = None  # the breaker's, for the round that is on
        self.refusal: ArithmeticRefusalError | None = None  # of the place behind the text so far
        self._totals = None if drafter is None else drafter.totals
        self._text: int | None = None  # its number in the totals, once it is followed
        self.report.traffic = self.drafting.traffic
        self._held: tuple[Context] | None = (context,)  # opaque: None may be one
        self._emissions = self._run()

    @property
    def _open(self) -> Context | None:
        """The target's context of the request; None once it has been closed."""
        return None if self._held is None else self._held[0]

    @property
    def tokens(self) -> Sequence[int]:
        """The committed text so far, prompt excluded."""
        return self._stop.tokens

    @property
    def text(self) -> str:
        """The text so far, before its stop string, all but certain at its end; needs ``decode``."""
        return self._stop.text

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Emission:
        """Return the next token of the text."""
        return next(self._emissions)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close what was left open, so that a text that was never begun keeps no slot for ever."""
        if getattr(self, "_held", None) is not None:  # there is none where __init__ has refused
            self.close()

    def close(self) -> None:
        """Free the request on both sides; may be called twice."""
        self._emissions.close()
        if self.report.finish is None:
            self.report.finish = Finish.ABANDONED
        self._free()

    def _begin_drafting(
        self, drafter: Drafter, context: Context, prompt: Sequence[int], proposal_key: int
    ) -> DraftRequest:
        """Return the request's drafting; context: the target's, for whom that decides something."""
        drafting = drafter.open(prompt, proposal_key)
        if isinstance(drafting, SendsStates) and isinstance(self._target, YieldsStates):
            drafting.use_states(RequestStates(self._target, context, self._committed))
        return drafting

    def _free(self) -> None:
        """Free the request on both sides, once."""
        if self._held is not None:
            (context,), self._held = self._held, None
            if self.breaker is not None:
                self.breaker.close()
            self.drafting.close()
            if self._totals is not None and self._text is not None:
                self._totals.end(self._text, self.report)
            self._target.close(context)

    def _run(self) -> Generator[Emission, None, None]:
        self.follow()
        try:
            while self.report.finish is None:
                began = time.perf_counter()
                emissions = self._round()
                seconds = time.perf_counter() - began
                self.report.seconds.total += seconds
                if self.choice is not None:
                    self._weigh(self.choice, seconds, len(emissions))
                self.round_ended()
                for emission in emissions:
                    if self._on_emission is not None:
                        self._on_emission(emission)
                    yield emission
                if self.refusal is not None and self.report.finish is None:
                    raise self.refusal
        finally:
            if self.report.finish is None:
                self.report.finish = Finish.ABANDONED
            self._free()

    def _weigh(self, choice: Choice, seconds: float, tokens: int) -> None:
        """Tell the breaker of a finished round, and the user when that changes something."""
        breaker, report = self.breaker, self.report
        first = report.rounds == 1
        if first:  # the target has read the prompt in it, which it does in any case
            seconds = report.seconds.drafter + report.seconds.audit
        if breaker is not None:
            changed = breaker.finished(choice, seconds, self.gain(tokens), first=first)
            breaker_changed(changed)
            self.breaker_changed(changed)

    def gain(self, tokens: int) -> Gain:
        """Return what the round that is over has brought, with so many tokens."""
        return Gain(tokens, self._asked + 1, came=self._came)

    def breaker_changed(self, changed: Sequence[Paused]) -> None:
        """Tell the user that the breaker has changed its mind, about this request or all."""
        report = self.report
        for each in changed:
            if each.state is BreakerState.OPEN:
                # Nothing was asked of a drafter that is away: why is said already.
                if report.drafted and not report.misses[_REASON[each.scope]]:
                    report.note(each.sentence)
            elif each.state is BreakerState.CLOSED:
                report.note("drafting pays again")

    def follow(self) -> None:
        """Let the drafter's totals count this text."""
        if self._totals is not None:
            self._text = self._totals.follow()

    def round_ended(self) -> None:
        """Let the drafter's totals have what this text has come to; call it after each round."""
        if self._totals is not None and self._text is not None:
            self._totals.update(self._text, self.report)

    def _context_changed(self) -> bool:
        """Whether p depends on something else than when this was last looked at."""
        assert self._held is not None
        (context,) = self._held
        version = self._context.changed(context)
        if version is None:
            return False
        self._policy = mirrored(self._policy, self._target, context)
        self.drafting.use_context(version)
        return True

    def _round(self) -> list[Emission]:
        policy = self.ask()
        if policy is not None:
            began = time.perf_counter()
            drafted = self.drafting.propose(policy)
            self.answered(drafted, time.perf_counter() - began)
        began = time.perf_counter()
        scores = self._target.score(*self.question())
        scored = time.perf_counter()
        judgement = self._judge(scores, self._proposal)
        self.report.seconds.target += scored - began
        self.report.seconds.verify += time.perf_counter() - scored
        return self.settle(judgement)

    # the steps of a round, in order; ``draftwire.verifier.together`` takes them for several texts

    @property
    def depth(self) -> int:
        """Drafts that the next round may ask for at most; 0 = none.

        It follows from the committed length and the limits alone (A23). One place is left for the
        bonus, so that no draft is paid for that could not be used.
        """
        if self._policy is None or not self._drafted:
            return 0
        return max(min(self._policy.depth, self._stop.left - 1), 0)

    def ask(self, choice: Choice | None = None) -> ProposalPolicy | None:
        """Begin a round: return what to ask the drafter for, or None where it is target-only.

        choice: what the round is, where that was decided for several texts; None = the breaker's.
        """
        self._context_changed()
        self._proposal, self._came = None, None
        report, drafting = self.report, self.drafting
        report.rounds += 1
        depth = self._asked = self.depth
        if self._policy is None or depth < 1:
            drafting.skip()
            report.target_only_rounds += 1
            self.choice = None if self.breaker is None else Choice.SAMPLE
            return None
        if self.breaker is not None:
            # Before anything of this round is drawn, from rounds that are finished (law 4).
            self.choice = self.breaker.admits() if choice is None else choice
            if self.choice is not Choice.DRAFT:
                drafting.skip()
                report.missed(self.choice.reason, 0)
                return None
        same = depth == self._policy.depth
        return self._policy if same else replace(self._policy, depth=depth)

    def answered(self, drafted: Drafted, seconds: float) -> None:
        """Take what has come for ``ask``, after so many seconds, audit included."""
        report = self.report
        spent = self.drafting.traffic.audit_seconds - report.seconds.audit
        report.seconds.audit += spent
        report.seconds.drafter += max(seconds - spent, 0.0)
        if isinstance(drafted, Miss):
            self._came = False if drafted.asked else None
            if (note := note_of(drafted, report.notes)) is not None:
                report.note(note)
            report.missed(drafted.reason, drafted.drafted)
        else:
            self._proposal, self._came = drafted, True

    def question(self) -> tuple[Context, Sequence[int], Sequence[int]]:
        """Return what the target is to score: its context, the committed ids and the drafts."""
        if self._proposal is not None and self._context_changed():
            # It was asked for under another context, whatever was drawn in it.
            self.report.missed(DropReason.WRONG_CONTEXT, len(self._proposal.tokens))
            self._proposal, self._came = None, False
        assert self._held is not None
        if self._proposal is None:
            return self._held[0], self._committed, ()
        self.report.proposed(len(self._proposal.tokens))
        return self._held[0], self._committed, self._proposal.tokens

    def round_at(self, first_row: int) -> Round:
        """Return the round that is on; first_row: of the scores, where its own begin."""
        drafting, proposal = self.drafting, self._proposal
        tokens = () if proposal is None else proposal.tokens
        return Round(
            tokens=tokens,
            rows=() if proposal is None else proposal.rows,
            first_row=first_row,
            row_count=len(tokens) + 1,
            words=self._words,
            generation=drafting.generation,
            round=drafting.round,
            first_position=len(self._committed),
            greedy=self._greedy,
        )

    def settle(self, judgement: Judgement) -> list[Emission]:
        """End the round: commit what was judged, and return its tokens."""
        drafts = 0 if self._proposal is None else len(self._proposal.tokens)
        self.refusal = judgement.refusal
        if judgement.tokens:
            return self._commit(judgement, drafts)
        if drafts:
            self.report.judged(drafts, drafts, 0)  # the text ends before all of them
        return []

    def _judge(self, scores: Any, proposal: Proposal | None) -> Judgement:
        """Judge the round that is on."""
        return judge(kernels_for(self._kernels, scores), scores, [self.round_at(0)])[0]

    def _commit(self, judgement: Judgement, depth: int) -> list[Emission]:
        """Keep the tokens up to the end of the text, tell the drafter, and return the emissions."""
        emissions: list[Emission] = []
        for place, token in enumerate(judgement.tokens):
            kind = KIND_AFTER[judgement.outcome] if place == judgement.accepted else Kind.ACCEPTED
            index = len(self._stop.tokens)
            finish = self._stop.add(token)
            emissions.append(Emission(token, kind, index, finish, self._stop.piece))
            if finish is not None:
                break
        kept = [emission.token for emission in emissions]
        accepted = min(judgement.accepted, len(kept))
        # A round whose last kept token is a draft has no token of its own behind it.
        outcome = Outcome.ENDED if accepted == len(kept) else judgement.outcome
        self._committed += kept
        self.drafting.commit(outcome, accepted, kept)
        report = self.report
        report.tokens += len(kept)
        report.bonus += outcome is Outcome.BONUS
        if depth:
            # Behind a refused place no draft is rejected: the text ends there.
            judged = depth if judgement.refusal is not None else judgement.accepted
            report.judged(depth, judged, accepted)
        if emissions[-1].finish is not None:
            report.finish = emissions[-1].finish
        return emissions


_REASON: Final = {
    "link": MissReason.BREAKER_OPEN,
    "request": MissReason.REQUEST_BREAKER_OPEN,
}


def generate(
    target: TargetEngine[Context],
    drafter: Drafter | None,
    prompt: Sequence[int],
    sampling: Sampling,
    policy: ProposalPolicy | None = None,
    *,
    depth: int | None = None,
    decode: Decode | None = None,
    ends: Ends | None = None,
    on_emission: Callable[[Emission], None] | None = None,
    words: WordSource | None = None,
    kernels: str = "auto",
) -> Generation[Context]:
    """Return the text that follows ``prompt``, token by token, with exactly the target's law.

    prompt: at least one id, any sequence of integers. drafter None (then policy is not used): every
    round is target-only. policy: depth, layout and the draft's own restrictions. depth: of this
    request, in place of the policy's; 0 = not drafted. decode: ids to
    text (:class:`draftwire.text.detokenizer.Detokenizer` of a tokenizer, or any function), needed
    for stop strings and for the text of emissions. ends: a further rule for where the text ends
    (StopRules). on_emission: called with every token before it is yielded. words: stands in for the
    verifier's own words (acceptance, correction, bonus, target-only), so that a law can be
    enumerated through this very loop; the proposal's words are the drafter's. kernels: what judges
    (:func:`draftwire.kernels.registry.kernels_for`). Raises ConfigurationError at once; and
    ArithmeticRefusalError at the place whose p the arithmetic refuses, behind every token before.
    """
    drafter, policy = with_depth(drafter, policy, depth)
    return Generation(
        target,
        drafter,
        prompt,
        sampling,
        policy,
        decode=decode,
        ends=ends,
        on_emission=on_emission,
        words=words,
        kernels=kernels,
    )
