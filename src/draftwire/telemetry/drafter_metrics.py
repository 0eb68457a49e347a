"""The metrics of a drafter, as data.

The collector, the table of docs/guides/operations.md and its check are all made from this one list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from draftwire.drafter.counters import DrafterCounters
from draftwire.drafter.finished import FinishedCounters
from draftwire.drafter.program import DrafterProgram
from draftwire.telemetry.metric_spec import Kind, MetricSpec, by_name

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM


@dataclass(frozen=True, slots=True)
class DrafterView:
    """What the metrics of a drafter are read from, all at one moment."""

    counters: DrafterCounters
    connections: int
    sessions: int
    slots_in_use: int
    queued: int
    reply_bytes: int
    reply_limit: int
    finished: FinishedCounters
    finished_contexts: int
    finished_bytes: int
    draining: bool

    @classmethod
    def of(cls, program: DrafterProgram[Any]) -> DrafterView:
        """Look at a program that another thread runs."""
        return cls(
            program.counters,
            len(program.connections),
            program.open_sessions,
            program.slots_in_use,
            program.queued,
            program.memory.held,
            program.memory.most,
            program.finished.counters,
            len(program.finished),
            program.finished.bytes,
            program.draining,
        )


DRAFTER_METRICS: Final[tuple[MetricSpec[DrafterView], ...]] = (
    MetricSpec(
        "draftwire_drafter_connections",
        _C,
        "Connections that were accepted",
        lambda v: v.counters.connections,
    ),
    MetricSpec(
        "draftwire_drafter_open_connections",
        _G,
        "Connections that are open now",
        lambda v: v.connections,
    ),
    MetricSpec(
        "draftwire_drafter_turned_away",
        _C,
        "Connections that were ended before HELLO was agreed, other than by a protocol error",
        lambda v: by_name(v.counters.rejected),
        "why",
    ),
    MetricSpec(
        "draftwire_drafter_exhausted",
        _C,
        "Failures to accept a connection, for want of descriptors or memory",
        lambda v: v.counters.exhausted,
    ),
    MetricSpec(
        "draftwire_drafter_leases_ended",
        _C,
        "Agreed connections that were ended because their verifier kept silent",
        lambda v: by_name(v.counters.ended_leases),
        "why",
    ),
    MetricSpec(
        "draftwire_drafter_sessions_lapsed",
        _C,
        "Sessions that were ended because nothing was asked in them, of verifiers that went on",
        lambda v: by_name(v.counters.ended_sessions),
        "why",
    ),
    MetricSpec(
        "draftwire_drafter_protocol_errors",
        _C,
        "Protocol errors that ended a connection, found here",
        lambda v: by_name(v.counters.local_errors),
        "code",
    ),
    MetricSpec(
        "draftwire_drafter_refused_messages",
        _C,
        "Messages that one session could not follow; its connection went on",
        lambda v: by_name(v.counters.refused),
        "code",
    ),
    MetricSpec(
        "draftwire_drafter_told_errors",
        _C,
        "Protocol errors that verifiers found in what was sent from here",
        lambda v: by_name(v.counters.remote_errors),
        "code",
    ),
    MetricSpec(
        "draftwire_drafter_sessions",
        _C,
        "Sessions that were drafted for",
        lambda v: v.counters.sessions,
    ),
    MetricSpec(
        "draftwire_drafter_open_sessions",
        _G,
        "Sessions that hold a context of the model now",
        lambda v: v.sessions,
    ),
    MetricSpec(
        "draftwire_drafter_slots_in_use",
        _G,
        "Proposals that a verifier waits for now",
        lambda v: v.slots_in_use,
    ),
    MetricSpec(
        "draftwire_drafter_queue",
        _G,
        "Proposals that are asked for and not begun",
        lambda v: v.queued,
    ),
    MetricSpec(
        "draftwire_drafter_drafts",
        _C,
        "Proposals that were sent",
        lambda v: v.counters.proposals,
    ),
    MetricSpec(
        "draftwire_drafter_draft_tokens",
        _C,
        "Draft tokens in the proposals that were sent",
        lambda v: v.counters.drafts,
    ),
    MetricSpec(
        "draftwire_drafter_declined",
        _C,
        "Rounds that were answered without a proposal",
        lambda v: by_name(v.counters.declined),
        "status",
    ),
    MetricSpec(
        "draftwire_drafter_short_of_memory",
        _C,
        "Of the declined, those whose answer was more than answers may hold",
        lambda v: v.counters.short,
    ),
    MetricSpec(
        "draftwire_drafter_reply_bytes",
        _G,
        "Bytes that answers hold, kept for retries or not sent yet, and those that are promised",
        lambda v: v.reply_bytes,
    ),
    MetricSpec(
        "draftwire_drafter_reply_bytes_limit",
        _G,
        "Bytes that answers may hold",
        lambda v: v.reply_limit,
    ),
    MetricSpec(
        "draftwire_drafter_withdrawn",
        _C,
        "Rounds that no verifier waited for any more when their turn came",
        lambda v: v.counters.withdrawn,
    ),
    MetricSpec(
        "draftwire_drafter_prefill_chunks",
        _C,
        "Chunks of long prefixes that were prefilled while the rest waited",
        lambda v: v.counters.prefill_chunks,
    ),
    MetricSpec(
        "draftwire_drafter_fed_tokens",
        _C,
        "Tokens of prefixes that the model has read, those among them that it has read again",
        lambda v: v.counters.fed_tokens,
    ),
    MetricSpec(
        "draftwire_drafter_kept_contexts",
        _G,
        "Contexts of texts that are over, kept for later ones",
        lambda v: v.finished_contexts,
    ),
    MetricSpec(
        "draftwire_drafter_kept_bytes",
        _G,
        "Bytes that the model holds of texts that are over",
        lambda v: v.finished_bytes,
    ),
    MetricSpec(
        "draftwire_drafter_reused_contexts",
        _C,
        "Sessions that went on from a text that was over",
        lambda v: v.finished.reused,
    ),
    MetricSpec(
        "draftwire_drafter_reused_tokens",
        _C,
        "Tokens of prefixes that were not read again for it",
        lambda v: v.finished.tokens,
    ),
    MetricSpec(
        "draftwire_drafter_evicted_contexts",
        _C,
        "Kept contexts that went for newer ones, or because the model failed",
        lambda v: v.finished.evicted,
    ),
    MetricSpec(
        "draftwire_drafter_state_rows",
        _C,
        "Hidden states of targets that the model was given, a row a token",
        lambda v: v.counters.state_rows,
    ),
    MetricSpec(
        "draftwire_drafter_engine_failures",
        _C,
        "Batches, and ends of contexts, that the engine answered with an exception",
        lambda v: v.counters.engine_failures,
    ),
    MetricSpec(
        "draftwire_drafter_batch_size",
        _H,
        "Proposals that were drawn together",
        lambda v: v.counters.batches,
    ),
    MetricSpec(
        "draftwire_drafter_batch_seconds",
        _H,
        "Time that a batch took",
        lambda v: v.counters.seconds,
    ),
    MetricSpec(
        "draftwire_drafter_received_bytes",
        _C,
        "Bytes from verifiers",
        lambda v: v.counters.received,
    ),
    MetricSpec(
        "draftwire_drafter_sent_bytes",
        _C,
        "Bytes for verifiers",
        lambda v: v.counters.sent,
    ),
    MetricSpec(
        "draftwire_drafter_draining",
        _G,
        "1 while no new session is taken",
        lambda v: int(v.draining),
    ),
)
