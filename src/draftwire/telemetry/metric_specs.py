"""Every metric, as data: name, kind, meaning, label and where its numbers come from.

The collectors, the table of docs/OPERATIONS.md and its check are all made from this one list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from draftwire.session.reasons import DropReason
from draftwire.telemetry.metric_spec import (
    DrafterView,
    Family,
    Kind,
    Source,
    VerifierView,
    breaker_costs,
    breaker_state,
    by_name,
    by_position,
    by_reason,
)
from draftwire.verifier.drafter import MissReason

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

DRAFTER: Final[tuple[Family[DrafterView], ...]] = (
    Family(
        "draftwire_drafter_connections",
        _C,
        "Connections that were accepted",
        lambda v: v.counters.connections,
    ),
    Family(
        "draftwire_drafter_open_connections",
        _G,
        "Connections that are open now",
        lambda v: v.connections,
    ),
    Family(
        "draftwire_drafter_turned_away",
        _C,
        "Connections that were ended before HELLO was agreed, other than by a protocol error",
        lambda v: by_name(v.counters.turned_away),
        "why",
    ),
    Family(
        "draftwire_drafter_exhausted",
        _C,
        "Times that nobody could be accepted, for want of descriptors or memory",
        lambda v: v.counters.exhausted,
    ),
    Family(
        "draftwire_drafter_leases_ended",
        _C,
        "Agreed connections that were ended because their verifier kept silent",
        lambda v: by_name(v.counters.leases),
        "why",
    ),
    Family(
        "draftwire_drafter_sessions_lapsed",
        _C,
        "Sessions that were ended because nothing was asked in them, of verifiers that went on",
        lambda v: by_name(v.counters.lapsed),
        "why",
    ),
    Family(
        "draftwire_drafter_protocol_errors",
        _C,
        "Protocol errors that ended a connection, found here",
        lambda v: by_name(v.counters.found),
        "code",
    ),
    Family(
        "draftwire_drafter_refused_messages",
        _C,
        "Messages that one session could not follow; its connection went on",
        lambda v: by_name(v.counters.refused),
        "code",
    ),
    Family(
        "draftwire_drafter_told_errors",
        _C,
        "Protocol errors that verifiers found in what was sent from here",
        lambda v: by_name(v.counters.told),
        "code",
    ),
    Family(
        "draftwire_drafter_sessions",
        _C,
        "Sessions that were drafted for",
        lambda v: v.counters.sessions,
    ),
    Family(
        "draftwire_drafter_open_sessions",
        _G,
        "Sessions that hold a context of the model now",
        lambda v: v.sessions,
    ),
    Family(
        "draftwire_drafter_slots_in_use",
        _G,
        "Proposals that a verifier waits for now",
        lambda v: v.slots_in_use,
    ),
    Family(
        "draftwire_drafter_queue",
        _G,
        "Proposals that are asked for and not begun",
        lambda v: v.queued,
    ),
    Family(
        "draftwire_drafter_proposals",
        _C,
        "Proposals that were sent",
        lambda v: v.counters.proposals,
    ),
    Family(
        "draftwire_drafter_drafts",
        _C,
        "Tokens in the proposals that were sent",
        lambda v: v.counters.drafts,
    ),
    Family(
        "draftwire_drafter_declined",
        _C,
        "Rounds that were answered without a proposal",
        lambda v: by_name(v.counters.declined),
        "status",
    ),
    Family(
        "draftwire_drafter_short_of_memory",
        _C,
        "Of the declined, those whose answer was more than answers may hold",
        lambda v: v.counters.short,
    ),
    Family(
        "draftwire_drafter_reply_bytes",
        _G,
        "Bytes that answers hold, kept for retries or not sent yet, and those that are promised",
        lambda v: v.reply_bytes,
    ),
    Family(
        "draftwire_drafter_reply_bytes_limit",
        _G,
        "Bytes that answers may hold",
        lambda v: v.reply_limit,
    ),
    Family(
        "draftwire_drafter_withdrawn",
        _C,
        "Rounds that nobody waited for any more when their turn came",
        lambda v: v.counters.withdrawn,
    ),
    Family(
        "draftwire_drafter_pieces",
        _C,
        "Pieces of long prefixes that were fed while the rest waited",
        lambda v: v.counters.pieces,
    ),
    Family(
        "draftwire_drafter_engine_failures",
        _C,
        "Batches, and ends of contexts, that the engine answered with an exception",
        lambda v: v.counters.engine_failures,
    ),
    Family(
        "draftwire_drafter_batch_size",
        _H,
        "Proposals that were drawn together",
        lambda v: v.counters.batches,
    ),
    Family(
        "draftwire_drafter_batch_seconds",
        _H,
        "Time that a batch took",
        lambda v: v.counters.seconds,
    ),
    Family(
        "draftwire_drafter_received_bytes",
        _C,
        "Bytes from verifiers",
        lambda v: v.counters.received,
    ),
    Family(
        "draftwire_drafter_sent_bytes",
        _C,
        "Bytes for verifiers",
        lambda v: v.counters.sent,
    ),
    Family(
        "draftwire_drafter_draining",
        _G,
        "1 while no new session is taken",
        lambda v: int(v.draining),
    ),
)

VERIFIER: Final[tuple[Family[VerifierView], ...]] = (
    Family("draftwire_texts", _C, "Texts that were begun", lambda v: v.texts),
    Family("draftwire_running_texts", _G, "Texts that are being made", lambda v: v.running),
    Family("draftwire_tokens", _C, "Tokens of the texts", lambda v: v.report.tokens),
    Family(
        "draftwire_rounds",
        _C,
        "Rounds, each one pass of the target",
        lambda v: {
            "drafted": v.report.drafted_rounds,
            "target_only": v.report.target_only_rounds,
        },
        "kind",
    ),
    Family(
        "draftwire_misses",
        _C,
        "Rounds without a proposal, by reason",
        lambda v: by_reason(v.report.misses, (*MissReason, *DropReason)),
        "reason",
    ),
    Family(
        "draftwire_drafts",
        _C,
        "Drafts that were asked for, by what became of them",
        lambda v: {
            "accepted": v.report.accepted,
            "rejected": v.report.rejected,
            "overtaken": v.report.overtaken,
            "after_end": v.report.after_end,
            "discarded": sum(v.report.discarded.values()),
        },
        "fate",
    ),
    Family(
        "draftwire_discarded_drafts",
        _C,
        "Drafts that were lost with their whole proposal",
        lambda v: by_reason(v.report.discarded, DropReason),
        "reason",
    ),
    Family(
        "draftwire_proposed_at",
        _C,
        "Drafts that went to verification, by position",
        lambda v: by_position(v.report.proposed_by_position),
        "position",
    ),
    Family(
        "draftwire_accepted_at",
        _C,
        "Drafts that were accepted, by position",
        lambda v: by_position(v.report.accepted_by_position),
        "position",
    ),
    Family("draftwire_bonus", _C, "Rounds that ended with a bonus token", lambda v: v.report.bonus),
    Family(
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
    Family(
        "draftwire_round_trip_seconds",
        _H,
        "From a STEP to its whole, valid proposal",
        lambda v: v.client.counters.round_trip,
    ),
    Family(
        "draftwire_deadline_seconds",
        _G,
        "What the next round waits for its proposal at most",
        lambda v: v.client.deadline,
    ),
    Family(
        "draftwire_slots_in_use",
        _G,
        "Slots that hold a round in flight or a proposal that is being verified",
        lambda v: 0 if v.client.slots is None else len(v.client.slots) - v.client.slots.free,
    ),
    Family(
        "draftwire_dropped_messages",
        _C,
        "Replies that were dropped, stale and duplicate ones included",
        lambda v: by_reason(v.client.counters.drops, DropReason),
        "reason",
    ),
    Family(
        "draftwire_audit_failures",
        _C,
        "Drafts that were not drawn from the q that came with them",
        lambda v: v.client.counters.drops[DropReason.AUDIT_FAILED],
    ),
    Family(
        "draftwire_stray_messages",
        _C,
        "Messages for sessions that are over",
        lambda v: v.client.counters.strays,
    ),
    Family("draftwire_sent_bytes", _C, "Bytes to the drafter", lambda v: v.client.counters.sent),
    Family(
        "draftwire_received_bytes",
        _C,
        "Bytes from the drafter",
        lambda v: v.client.counters.received,
    ),
    Family(
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
    Family(
        "draftwire_connected",
        _G,
        "1 while a connection is agreed",
        lambda v: int(v.client.agreed is not None),
    ),
    Family(
        "draftwire_protocol_errors",
        _C,
        "Protocol errors found in what the drafter sent",
        lambda v: by_name(v.client.counters.found),
        "code",
    ),
    Family(
        "draftwire_told_errors",
        _C,
        "Protocol errors that the drafter found in what was sent from here",
        lambda v: by_name(v.client.counters.told),
        "code",
    ),
    Family(
        "draftwire_breaker_state",
        _G,
        "1 for the state that the breaker is in; all 0 where there is none",
        lambda v: breaker_state(v.client),
        "state",
    ),
    Family(
        "draftwire_breaker_pauses",
        _C,
        "How often drafting was paused because it did not pay",
        lambda v: 0 if v.client.breaker is None else v.client.breaker.pauses,
    ),
    Family(
        "draftwire_breaker_seconds_per_token",
        _G,
        "What the breaker compares, once it is measured",
        lambda v: breaker_costs(v.client),
        "way",
    ),
)


def markdown(families: Sequence[Family[Source]]) -> str:
    """Return the table of docs/OPERATIONS.md."""
    lines = ["| metric | kind | label | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{each.shown}` | {each.kind.value} | {f'`{each.label}`' if each.label else ''} |"
        f" {each.help} |"
        for each in families
    ]
    return "\n".join(lines)
