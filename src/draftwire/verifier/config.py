"""How a verifier uses its drafter: what it expects, how long it waits, and what it checks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from draftwire.bounds import require_seconds, require_whole
from draftwire.errors import ConfigurationError
from draftwire.session.slot_buffers import SlotPlan
from draftwire.verifier.hello import verifier_hello
from draftwire.verifier.states import Projection, TargetStates
from draftwire.wire.hello import ANY_IDENTITY, DEFAULT_STATE_ROWS
from draftwire.wire.identity import ModelIdentity
from draftwire.wire.messages import Hello
from draftwire.wire.registry import (
    NO_FEATURES,
    STATE_DTYPES,
    Adaptation,
    Feature,
    HiddenDtype,
    WireVersion,
)

MOST_STATE_ROWS: Final = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    """What a verifier expects of its drafter, and how it goes about its rounds.

    version: the one wire version spoken. deadline: for a round, in seconds; None = derived from the
    rounds before. connect_timeout: seconds, for connecting and for HELLO. audit: recompute every
    draw (A22). max_sessions, max_depth, max_support: the most that HELLO asks for. draft_identity,
    adaptation: the drafter that is expected; all zero and ANY take any whose tokenizer and
    vocabulary are the target's. shard_count: of how many shards each reply is one (P29). key: the
    secret that both sides prove to hold (P20); empty = no handshake. slots: memory for replies;
    None = what HELLO agrees on. early_stop: let the drafter admit fewer drafts than are asked for,
    each before it is drawn (P35). mirror: tell it what the target's processors do, so that it does
    the same (P34). state_rows: most rows of hidden states in a STEP, where the target yields them
    and the drafter reads them (P36); 0 = none are offered. state_dtype: an element of those,
    BFLOAT16 or FLOAT32. state_projection: the drafter's own, applied here, so that fewer bytes
    travel. Raises ConfigurationError.
    """

    version: WireVersion = WireVersion.V2
    deadline: float | None = None
    connect_timeout: float = 1.0
    audit: bool = True
    max_sessions: int = 64
    max_depth: int = 16
    max_support: int = 1024
    draft_identity: bytes = ANY_IDENTITY
    adaptation: Adaptation = Adaptation.ANY
    shard_count: int = 1
    key: bytes = field(default=b"", repr=False)
    slots: SlotPlan | None = None
    early_stop: bool = False
    mirror: bool = True
    state_rows: int = DEFAULT_STATE_ROWS
    state_dtype: HiddenDtype = HiddenDtype.BFLOAT16
    state_projection: Projection | None = None

    def __post_init__(self) -> None:
        """Refuse times that no round could be made under."""
        require_seconds("connect_timeout", self.connect_timeout)
        if self.deadline is not None:
            require_seconds("deadline", self.deadline)
        require_whole("state_rows", self.state_rows, 0)
        if self.state_rows > MOST_STATE_ROWS:
            raise ConfigurationError(f"state_rows must be at most {MOST_STATE_ROWS:,}")
        if self.state_dtype not in STATE_DTYPES:
            raise ConfigurationError("state_dtype must be BFLOAT16 or FLOAT32")

    def hello(self, target: ModelIdentity, states_of: TargetStates | None = None) -> Hello:
        """Return the HELLO of this configuration, whose target this is.

        states_of: what the target has of states, where it does not say so itself.
        """
        has = (states_of or TargetStates.of(target)) if self.state_rows else None
        states = None
        if has is not None:
            states = has.offer(self.state_rows, self.state_dtype, self.state_projection)
        return verifier_hello(
            target,
            version=self.version,
            max_sessions=self.max_sessions,
            max_depth=self.max_depth,
            max_support=self.max_support,
            draft_identity=self.draft_identity,
            adaptation=self.adaptation,
            shard_count=self.shard_count,
            features=(Feature.EARLY_STOP if self.early_stop else NO_FEATURES)
            | (Feature.MIRROR if self.mirror else NO_FEATURES),
            states=states,
        )


_FIELDS: Final = frozenset(each.name for each in fields(VerifierConfig))


def configured(config: VerifierConfig | None, **options: Any) -> VerifierConfig:
    """Return a config with fields replaced; None = the defaults. Raises ConfigurationError."""
    unknown = sorted(options.keys() - _FIELDS)
    if unknown:
        raise ConfigurationError(
            f"a verifier has no option {', '.join(unknown)}: they are {', '.join(sorted(_FIELDS))}"
        )
    return replace(config or VerifierConfig(), **options)
