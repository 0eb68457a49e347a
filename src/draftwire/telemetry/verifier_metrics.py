"""The metrics of a verifier, as data; what vLLM counts too has vLLM's noun.

The collector, the table of docs/guides/operations.md and its check are all made from this one list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftwire.session.reasons import DropReason
from draftwire.telemetry.metric_spec import (
    Kind,
    Labelled,
    MetricSpec,
    by_name,
    by_position,
    by_reason,
)
from draftwire.verifier.breaker import Breaker, BreakerState
from draftwire.verifier.client import DraftClient
from draftwire.verifier.miss import MissReason
from draftwire.verifier.report import Report

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM


@dataclass(frozen=True, slots=True)
class VerifierView:
    """What the metrics of a verifier are read from, all at one moment."""

    client: DraftClient
    report: Report
    texts: int
    running: int

    @classmethod
    def of(cls, client: DraftClient) -> VerifierView:
        """Look at a client that another thread runs."""
        totals = client.totals
        return cls(client, totals.sum(), totals.texts, totals.running)


def breaker_state(client: DraftClient) -> Labelled:
    """Return 1 for the state of a client's breaker, 0 for the others."""
    breaker = client.breaker
    return {
        state.value: int(breaker is not None and breaker.state is state) for state in BreakerState
    }


def breaker_pauses(client: DraftClient) -> Labelled:
    """Return how often a client's breaker has paused, by whom that held for."""
    breaker = Breaker() if client.breaker is None else client.breaker
    return dict(breaker.pauses_by_scope)


def breaker_costs(client: DraftClient) -> Labelled:
    """Return what a token costs with drafts and without, where that is measured."""
    breaker = client.breaker
    if breaker is None:
        return {}
    costs = {"drafted": breaker.drafted, "target_only": breaker.alone}
    return {way: cost for way, cost in costs.items() if cost is not None}


VERIFIER_METRICS: Final[tuple[MetricSpec[VerifierView], ...]] = (
    MetricSpec("draftwire_requests", _C, "Requests that were begun", lambda v: v.texts),
    MetricSpec("draftwire_requests_running", _G, "Requests that are running", lambda v: v.running),
    MetricSpec(
        "draftwire_generation_tokens", _C, "Tokens that were generated", lambda v: v.report.tokens
    ),
    MetricSpec(
        "draftwire_rounds",
        _C,
        "Rounds, each one pass of the target",
        lambda v: {
            "drafted": v.report.drafted_rounds,
            "target_only": v.report.target_only_rounds,
        },
        "kind",
    ),
    MetricSpec(
        "draftwire_misses",
        _C,
        "Rounds without a proposal, by reason",
        lambda v: by_reason(v.report.misses, (*MissReason, *DropReason)),
        "reason",
    ),
    MetricSpec(
        "draftwire_drafts",
        _C,
        "Proposals that went to verification",
        lambda v: v.report.drafted_rounds,
    ),
    MetricSpec(
        "draftwire_draft_tokens",
        _C,
        "Draft tokens that went to verification",
        lambda v: v.report.verified,
    ),
    MetricSpec(
        "draftwire_accepted_tokens",
        _C,
        "Draft tokens that were accepted",
        lambda v: v.report.accepted,
    ),
    MetricSpec(
        "draftwire_unaccepted_tokens",
        _C,
        "Verified draft tokens outside the text: rejected, or behind a rejection or its end",
        lambda v: {
            "rejected": v.report.rejected,
            "overtaken": v.report.overtaken,
            "after_end": v.report.after_end,
        },
        "why",
    ),
    MetricSpec(
        "draftwire_discarded_tokens",
        _C,
        "Draft tokens that were lost with their whole proposal",
        lambda v: by_reason(v.report.discarded, DropReason),
        "reason",
    ),
    MetricSpec(
        "draftwire_draft_tokens_per_pos",
        _C,
        "Draft tokens that went to verification, by position",
        lambda v: by_position(v.report.proposed_by_position),
        "position",
    ),
    MetricSpec(
        "draftwire_accepted_tokens_per_pos",
        _C,
        "Draft tokens that were accepted, by position",
        lambda v: by_position(v.report.accepted_by_position),
        "position",
    ),
    MetricSpec(
        "draftwire_bonus_tokens",
        _C,
        "Bonus tokens",
        lambda v: v.report.bonus,
    ),
    MetricSpec(
        "draftwire_seconds",
        _C,
        "Time of the rounds, by what it went into; what is left is bookkeeping",
        lambda v: {
            "target": v.report.seconds.target,
            "drafter": v.report.seconds.drafter,
            "verify": v.report.seconds.verify,
            "audit": v.report.seconds.audit,
        },
        "part",
    ),
    MetricSpec(
        "draftwire_round_trip_seconds",
        _H,
        "From a STEP to its whole, valid proposal",
        lambda v: v.client.counters.round_trip,
    ),
    MetricSpec(
        "draftwire_deadline_seconds",
        _G,
        "What the next round waits for its proposal at most",
        lambda v: v.client.deadline,
    ),
    MetricSpec(
        "draftwire_slots_in_use",
        _G,
        "Slots that hold a round in flight or a proposal that is being verified",
        lambda v: 0 if v.client.slots is None else len(v.client.slots) - v.client.slots.free,
    ),
    MetricSpec(
        "draftwire_dropped_messages",
        _C,
        "Replies that were dropped, stale and duplicate ones included",
        lambda v: by_reason(v.client.counters.drops, DropReason),
        "reason",
    ),
    MetricSpec(
        "draftwire_audit_failures",
        _C,
        "Drafts that were not drawn from the q that came with them",
        lambda v: v.client.counters.drops[DropReason.AUDIT_FAILED],
    ),
    MetricSpec(
        "draftwire_stray_messages",
        _C,
        "Messages for sessions that are over",
        lambda v: v.client.counters.strays,
    ),
    MetricSpec(
        "draftwire_sent_bytes", _C, "Bytes to the drafter", lambda v: v.client.counters.sent
    ),
    MetricSpec(
        "draftwire_state_bytes",
        _C,
        "Of those, hidden states of the target",
        lambda v: v.client.counters.state_bytes,
    ),
    MetricSpec(
        "draftwire_received_bytes",
        _C,
        "Bytes from the drafter",
        lambda v: v.client.counters.received,
    ),
    MetricSpec(
        "draftwire_connections",
        _C,
        "Connections to the drafter, by how they went",
        lambda v: {
            "agreed": v.client.counters.connections,
            "failed": v.client.counters.unreachable,
            "lost": v.client.counters.lost,
        },
        "outcome",
    ),
    MetricSpec(
        "draftwire_connected",
        _G,
        "1 while a connection is agreed",
        lambda v: int(v.client.agreed is not None),
    ),
    MetricSpec(
        "draftwire_protocol_errors",
        _C,
        "Protocol errors found in what the drafter sent",
        lambda v: by_name(v.client.counters.local_errors),
        "code",
    ),
    MetricSpec(
        "draftwire_told_errors",
        _C,
        "Protocol errors that the drafter found in what was sent from here",
        lambda v: by_name(v.client.counters.remote_errors),
        "code",
    ),
    MetricSpec(
        "draftwire_breaker_state",
        _G,
        "1 for the state that the link's circuit of the breaker is in; all 0 without a breaker",
        lambda v: breaker_state(v.client),
        "state",
    ),
    MetricSpec(
        "draftwire_breaker_pauses",
        _C,
        "How often drafting was paused because it did not pay: for all requests, or for one",
        lambda v: breaker_pauses(v.client),
        "scope",
    ),
    MetricSpec(
        "draftwire_breaker_pauses_new_requests",
        _G,
        "1 while requests begin paused, since drafting has not paid for the last ones",
        lambda v: int(v.client.breaker is not None and v.client.breaker.pauses_new_requests),
    ),
    MetricSpec(
        "draftwire_breaker_paused_requests",
        _G,
        "Running requests that pause because drafting does not pay for them",
        lambda v: 0 if v.client.breaker is None else v.client.breaker.paused_requests,
    ),
    MetricSpec(
        "draftwire_breaker_seconds_per_token",
        _G,
        "What the breaker compares, once it is measured",
        lambda v: breaker_costs(v.client),
        "way",
    ),
)
