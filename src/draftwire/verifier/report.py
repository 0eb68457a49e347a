"""What one generation did: counts, reasons, bytes and where the time went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from draftwire.verifier.counters import Traffic
from draftwire.verifier.miss import Reason
from draftwire.verifier.stop import Finish

_SUMMED: Final = (
    "prompt_tokens",
    "tokens",
    "rounds",
    "drafted_rounds",
    "target_only_rounds",
    "drafted",
    "verified",
    "accepted",
    "rejected",
    "overtaken",
    "after_end",
    "bonus",
)


@dataclass(slots=True)
class Seconds:
    """Where the wall-clock time went. ``drafter`` is the wait for proposals, audit excluded."""

    total: float = 0.0
    target: float = 0.0
    drafter: float = 0.0
    verify: float = 0.0
    audit: float = 0.0


@dataclass(slots=True)
class Report:
    """Filled in while a generation runs; every draft that was asked for is in exactly one count.

    ``drafted = verified + discarded``; ``verified = accepted + rejected + overtaken + after_end``:
    overtaken drafts stood behind a rejection, after_end behind the end of the text. The lists have
    an entry a position of the proposal. misses: rounds without a proposal, by reason.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted_rounds: int = 0
    target_only_rounds: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    rejected: int = 0
    overtaken: int = 0
    after_end: int = 0
    bonus: int = 0
    proposed_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    discarded: Counter[Reason] = field(default_factory=Counter)
    misses: Counter[Reason] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    seconds: Seconds = field(default_factory=Seconds)
    traffic: Traffic = field(default_factory=Traffic)
    finish: Finish | None = None

    @property
    def tokens_per_target_pass(self) -> float:
        """Tokens of the text for each pass of the target; 0 before the first."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the text for each second of wall-clock time; 0 before the first."""
        return self.tokens / self.seconds.total if self.seconds.total else 0.0

    @property
    def sent_bytes_per_position(self) -> float:
        """Bytes to the drafter for each drafted position."""
        return self.traffic.sent / self.drafted if self.drafted else 0.0

    @property
    def received_bytes_per_position(self) -> float:
        """Bytes from the drafter for each drafted position."""
        return self.traffic.received / self.drafted if self.drafted else 0.0

    def note(self, text: str) -> None:
        """Say something to the user once, however often it happens."""
        if text not in self.notes:
            self.notes.append(text)

    def proposed(self, depth: int) -> None:
        """Book a whole proposal of ``depth`` drafts that goes to verification."""
        missing = depth - len(self.proposed_by_position)
        if missing > 0:
            self.proposed_by_position += [0] * missing
            self.accepted_by_position += [0] * missing
        for position in range(depth):
            self.proposed_by_position[position] += 1
        self.drafted_rounds += 1
        self.drafted += depth
        self.verified += depth

    def judged(self, depth: int, accepted: int, kept: int) -> None:
        """Book the verdict: ``accepted`` of ``depth`` drafts, ``kept`` of them inside the text."""
        for position in range(kept):
            self.accepted_by_position[position] += 1
        self.accepted += kept
        if kept < accepted:
            self.after_end += depth - kept
        elif accepted < depth:
            self.rejected += 1
            self.overtaken += depth - accepted - 1

    def missed(self, reason: Reason, drafted: int) -> None:
        """Book a round without a proposal and the ``drafted`` positions that it lost."""
        self.misses[reason] += 1
        self.target_only_rounds += 1
        if drafted:
            self.drafted += drafted
            self.discarded[reason] += drafted

    def add(self, other: Report) -> None:
        """Add what another text has come to; of a text that another thread makes, add a copy."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in (
            (self.proposed_by_position, other.proposed_by_position),
            (self.accepted_by_position, other.accepted_by_position),
        ):
            mine += [0] * (len(theirs) - len(mine))
            for position, count in enumerate(theirs):
                mine[position] += count
        self.discarded.update(other.discarded)
        self.misses.update(other.misses)
        for name in ("total", "target", "drafter", "verify", "audit"):
            seconds = getattr(self.seconds, name) + getattr(other.seconds, name)
            setattr(self.seconds, name, seconds)
        self.traffic.sent += other.traffic.sent
        self.traffic.states += other.traffic.states
        self.traffic.received += other.traffic.received
        self.traffic.audit_seconds += other.traffic.audit_seconds

    def copy(self) -> Report:
        """Return a copy that changes no more; call it where no other thread makes the text."""
        return replace(
            self,
            proposed_by_position=self.proposed_by_position.copy(),
            accepted_by_position=self.accepted_by_position.copy(),
            discarded=self.discarded.copy(),
            misses=self.misses.copy(),
            notes=self.notes.copy(),
            seconds=replace(self.seconds),
            traffic=replace(self.traffic),
        )

    def speculative_decoding(self) -> dict[str, Any]:
        """Return the figures under the names of vLLM's answers (RequestSpecDecodeMetrics, 0.32).

        num_spec_steps: rounds whose drafts were verified. num_spec_tokens: drafts of the longest.
        acceptance_histogram: at j, the steps that kept j drafts. mean_acceptance_length: drafts and
        the token after them a step, 1 before any. draft_acceptance_rate: kept of the verified ones,
        0 before any. Drafts behind the end of the text are not kept.
        """
        steps = self.proposed_by_position[0] if self.proposed_by_position else 0
        reached = [steps, *self.accepted_by_position, 0]  # steps that kept so many drafts or more
        accepted = sum(self.accepted_by_position)
        return {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / self.verified if self.verified else 0.0,
            "acceptance_histogram": [more - beyond for more, beyond in pairwise(reached)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": self.verified,
            "num_spec_tokens": len(self.proposed_by_position),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "drafted_rounds": self.drafted_rounds,
            "target_only_rounds": self.target_only_rounds,
            "tokens_per_target_pass": self.tokens_per_target_pass,
            "tokens_per_second": self.tokens_per_second,
            "drafted": self.drafted,
            "verified": self.verified,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "overtaken": self.overtaken,
            "after_end": self.after_end,
            "bonus": self.bonus,
            "proposed_by_position": list(self.proposed_by_position),
            "accepted_by_position": list(self.accepted_by_position),
            "speculative_decoding": self.speculative_decoding(),
            "discarded": {reason.value: n for reason, n in self.discarded.items()},
            "misses": {reason.value: n for reason, n in self.misses.items()},
            "bytes_sent": self.traffic.sent,
            "state_bytes_sent": self.traffic.states,
            "bytes_received": self.traffic.received,
            "sent_bytes_per_position": self.sent_bytes_per_position,
            "received_bytes_per_position": self.received_bytes_per_position,
            "seconds": {
                "total": self.seconds.total,
                "target": self.seconds.target,
                "drafter": self.seconds.drafter,
                "verify": self.seconds.verify,
                "audit": self.seconds.audit,
            },
            "finish": None if self.finish is None else self.finish.value,
            "notes": list(self.notes),
        }
