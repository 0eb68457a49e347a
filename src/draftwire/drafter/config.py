"""What a drafter offers, and how much it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from draftwire.bounds import require_whole
from draftwire.drafter.limits import PeerLimits
from draftwire.errors import ConfigurationError
from draftwire.kernels.registry import CHOICES
from draftwire.wire.agreement import version_of
from draftwire.wire.hello import ANY_IDENTITY, DEFAULT_STATE_ROWS
from draftwire.wire.identity import require_identity
from draftwire.wire.registry import V2_LAYOUTS, LayoutSet, WireVersion

MOST_CONTEXT: Final = 1 << 28
"""Tokens of a prefix whose STEP still has a size that HELLO can name."""


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """What a drafter offers, and how much it takes.

    version: the one wire version spoken. layouts: IDS_ONLY for v1; DENSE, SPARSE or both for v2.
    max_sessions, max_slots, max_depth, max_support: for each connection. max_context: tokens of a
    prefix and its proposal, 0 = 2^18 or the engine's where that is more; of a prefix that is longer
    than the engine reads, it reads the last tokens. max_reply_bytes: 0 = what the other limits
    need; less is refused in HELLO (P8). max_reply_memory: bytes that the answers of all connections
    may hold; 0 = half of the memory that there is. kept_prefix_memory: bytes that the model may
    hold of sessions that are over, for later ones of the same key; 0 = nothing. max_connections:
    over all. max_batch: most proposals drawn at once. peer: rates and times. shard_count: of how
    many shards each reply is one (P29); 1 = whole replies. state_rows: most rows of hidden states
    in a STEP, for a model that reads them (P36). kernels: what quantises and draws, a choice of
    ``kernels_for``. mirror: follow the processors that a STEP holds (P34).
    target_identity: the one target checkpoint that is drafted for, all zero = any.
    """

    version: WireVersion = WireVersion.V2
    layouts: LayoutSet = V2_LAYOUTS
    max_sessions: int = 4
    max_slots: int = 4
    max_depth: int = 8
    max_support: int = 256
    max_context: int = 0
    max_reply_bytes: int = 0
    max_reply_memory: int = 0
    kept_prefix_memory: int = 0
    max_connections: int = 64
    max_batch: int = 32
    shard_count: int = 1
    kernels: str = "auto"
    mirror: bool = True
    state_rows: int = DEFAULT_STATE_ROWS
    target_identity: bytes = ANY_IDENTITY
    peer: PeerLimits = field(default_factory=PeerLimits)

    def __post_init__(self) -> None:
        """Refuse limits that nothing could be done under."""
        if self.kernels not in CHOICES:
            raise ConfigurationError(f"kernels must be one of {', '.join(CHOICES)}")
        for name in (
            "max_sessions",
            "max_slots",
            "max_depth",
            "max_support",
            "max_connections",
            "max_batch",
            "shard_count",
            "state_rows",
        ):
            require_whole(name, getattr(self, name), 1)
        require_identity("target_identity", self.target_identity)
        for name in ("max_context", "max_reply_bytes", "max_reply_memory", "kept_prefix_memory"):
            require_whole(name, getattr(self, name), 0)
        if self.max_context > MOST_CONTEXT:
            raise ConfigurationError(f"max_context must be at most {MOST_CONTEXT:,}")
        if 0 < self.peer.max_positions < self.max_depth:
            raise ConfigurationError(
                f"max_positions {self.peer.max_positions} never lets a proposal of max_depth"
                f" {self.max_depth} through"
            )
        if version_of(self.layouts) is not self.version:
            raise ConfigurationError(
                f"{self.layouts!r} does not belong to wire {self.version.name}: v1 carries IDS_ONLY"
                " alone, v2 DENSE and SPARSE"
            )
