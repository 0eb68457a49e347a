"""What a drafter says of itself in HELLO."""

from __future__ import annotations

from typing import Any

from draftwire.drafter.config import DrafterConfig
from draftwire.drafter.contexts import longest_prefix
from draftwire.drafter.engine import DraftEngine, LimitsDepth
from draftwire.drafter.states import states_read, unwindowed
from draftwire.wire.hello import hello_of
from draftwire.wire.messages import Hello
from draftwire.wire.registry import NO_FEATURES, Feature, Role


def drafter_hello(
    engine: DraftEngine[Any], config: DrafterConfig, *, mirrors: bool = True
) -> Hello:
    """Return the HELLO of a drafter: its engine's identity and the limits of its configuration.

    mirrors: whether its proposer follows the processors of a policy.
    """
    config = unwindowed(engine, engine.max_context, config)
    features = Feature.EARLY_STOP | (Feature.MIRROR if mirrors and config.mirror else NO_FEATURES)
    most = engine.max_depth if isinstance(engine, LimitsDepth) else config.max_depth
    return hello_of(
        Role.DRAFTER,
        engine,
        adaptation=engine.adaptation,
        layouts=config.layouts,
        max_sessions=config.max_sessions,
        max_slots=config.max_slots,
        max_depth=min(config.max_depth, engine.max_context - 1, most),
        max_support=config.max_support,
        max_context=longest_prefix(engine.max_context, config),
        max_reply_bytes=config.max_reply_bytes,
        shard_count=config.shard_count,
        peer_identity=config.target_identity,
        states=states_read(engine, config.state_rows),
        features=NO_FEATURES if config.shard_count > 1 else features,
    )
