"""Small peers, one valid message of every kind, and strategies over all valid messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from draftwire.errors import ProtocolErrorCode
from draftwire.wire.agreement import Agreed, agree, q_bytes
from draftwire.wire.codec import encode, message_type
from draftwire.wire.fields import FIELD_NAMES
from draftwire.wire.frames import encode_frame, frame_bytes
from draftwire.wire.messages import (
    Cancel,
    Challenge,
    Commit,
    CommitRider,
    Complete,
    ErrorMessage,
    Hello,
    Message,
    Ping,
    Pong,
    Proof,
    ProposalPolicy,
    Reply,
    ReplyRow,
    ReplyRows,
    Reset,
    Step,
)
from draftwire.wire.processors import (
    Allow,
    Bias,
    NoRepeatNgram,
    Occurrence,
    Processor,
    Repetition,
    Sequences,
    Suppress,
    encode_processors,
)
from draftwire.wire.registry import (
    MAX_PROCESSOR_BYTES,
    MAX_SEQUENCE,
    MAX_STATE_LAYERS,
    PRECISION,
    Q_SEMANTIC,
    RNG_ABI,
    STATE_DTYPES,
    TOTAL,
    VERIFIER_SEMANTIC,
    Adaptation,
    Feature,
    HiddenDtype,
    Layout,
    LayoutSet,
    Outcome,
    Role,
    Status,
    WireVersion,
)
from draftwire.wire.states import has_block

VERIFIER = Hello(
    role=Role.VERIFIER,
    adaptation=Adaptation.ANY,
    layouts=LayoutSet.DENSE | LayoutSet.SPARSE,
    vocab_size=11,
    max_sessions=8,
    max_slots=3,
    max_depth=4,
    shard_count=1,
    max_support=5,
    max_context=32,
    max_step_bytes=512,
    max_reply_bytes=1024,
    hidden_rows=2,
    hidden_dtype=HiddenDtype.BFLOAT16,
    hidden_width=3,
    q_semantic=Q_SEMANTIC,
    verifier_semantic=VERIFIER_SEMANTIC,
    rng_abi=RNG_ABI,
    precision=PRECISION,
    id_map_hash=b"m" * 32,
    tokenizer_hash=b"t" * 32,
    draft_identity=bytes(32),
    target_identity=b"T" * 32,
)
DRAFTER = replace(
    VERIFIER,
    role=Role.DRAFTER,
    adaptation=Adaptation.NATIVE,
    draft_identity=b"D" * 32,
    target_identity=bytes(32),
)
AGREED = agree(VERIFIER, DRAFTER)
WIDE = {"features": Feature.MIRROR, "max_step_bytes": 512 + MAX_PROCESSOR_BYTES}
AGREED_MIRRORED = agree(replace(VERIFIER, **WIDE), replace(DRAFTER, **WIDE))  # type: ignore[arg-type]
READS: dict[str, Any] = {"features": Feature.STATES, "hidden_layers": (1, 3)}
OFFERS_STATES = replace(VERIFIER, features=Feature.STATES)
READS_STATES = replace(DRAFTER, **READS)
AGREED_STATES = agree(OFFERS_STATES, READS_STATES)
AGREED_V1 = agree(
    replace(VERIFIER, layouts=LayoutSet.IDS_ONLY), replace(DRAFTER, layouts=LayoutSet.IDS_ONLY)
)

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
digest = st.binary(min_size=16, max_size=16)
token = st.integers(0, AGREED.vocab_size - 1)
ended_or_not = st.sampled_from([outcome for outcome in Outcome if outcome != Outcome.NONE])


def framed(message: Message, version: WireVersion = WireVersion.V2) -> bytes:
    """Return a message as the bytes of its frame."""
    return frame_bytes(encode_frame(version, message_type(message), *encode(message)))


def payload_of(message: Message) -> bytes:
    """Return a message's payload as one bytes object."""
    return b"".join(encode(message))


penalty = st.floats(2.0**-14, 2.0**14, width=32)
number = st.floats(-(2.0**14), 2.0**14, width=32).filter(lambda value: str(value) != "-0.0")
bias = st.one_of(number, st.just(float("-inf")))
rising = st.sets(token, min_size=1).map(lambda ids: tuple(sorted(ids)))
positions = st.tuples(u32, u32).filter(lambda pair: pair[0] < pair[1])
sequence = st.tuples(bias, st.lists(token, min_size=1, max_size=5).map(tuple))
processors: st.SearchStrategy[Processor] = st.one_of(
    st.builds(Repetition, u32, penalty),
    st.builds(Occurrence, u32, number, number),
    st.builds(NoRepeatNgram, u32, st.integers(1, MAX_SEQUENCE)),
    st.dictionaries(token, bias, min_size=1).map(
        lambda biases: Bias(tuple(sorted(biases)), tuple(biases[id_] for id_ in sorted(biases)))
    ),
    st.builds(lambda pair, ids: Suppress(pair[0], pair[1], ids), positions, rising),
    st.builds(lambda pair, ids: Allow(pair[0], pair[1], ids), positions, rising),
    st.builds(Sequences, u32, st.lists(sequence, min_size=1, max_size=4).map(tuple)),
)


@st.composite
def policies(draw: st.DrawFn, agreed: Agreed) -> ProposalPolicy:
    depth = draw(st.integers(1, agreed.max_depth))
    if agreed.version == WireVersion.V1:
        return ProposalPolicy(Layout.IDS_ONLY, depth, 0.0)
    layout = draw(st.sampled_from([Layout.DENSE, Layout.SPARSE]))
    return ProposalPolicy(
        layout=layout,
        depth=depth,
        temperature=draw(
            st.one_of(st.just(0.0), st.floats(2.0**-14, 2.0**14, width=32, allow_nan=False))
        ),
        support=draw(st.integers(1, agreed.max_support)) if layout == Layout.SPARSE else 0,
        top_k=draw(st.integers(0, agreed.vocab_size)),
        top_p=draw(st.integers(1, TOTAL)),
        min_p=draw(st.integers(0, TOTAL)),
        processors=encode_processors(draw(st.lists(processors, max_size=4)))
        if agreed.mirrors
        else b"",
    )


_FINITE = bytes(each & 0x3F for each in range(256))  # no exponent of ones alone is left


@st.composite
def steps(draw: st.DrawFn, agreed: Agreed) -> Step:
    tokens = tuple(draw(st.lists(token, max_size=20)))
    base = draw(st.integers(0 if tokens else 1, 2**32 - 30))
    number = draw(st.integers(1, 2**32 - 1))
    outcome = draw(st.sampled_from(Outcome)) if number > 1 else Outcome.NONE
    rider = CommitRider(0, 0, Outcome.NONE)
    if outcome != Outcome.NONE:
        most = 0 if outcome == Outcome.TARGET_ONLY else agreed.max_depth
        rider = CommitRider(draw(st.integers(1, number - 1)), draw(st.integers(0, most)), outcome)
    most = agreed.hidden_rows
    if agreed.states is not None:  # no state of the anchor is known
        most = min(most, max(len(tokens) - 1, 0))
    rows = draw(st.integers(0, most))
    size = rows * agreed.hidden_row_bytes
    return Step(
        session=draw(st.integers(1, 2**64 - 1)),
        slot=draw(st.integers(0, agreed.max_slots - 1)),
        generation=draw(st.integers(1, 2**32 - 1)),
        round=number,
        anchor=base + len(tokens) - 1,
        policy=draw(policies(agreed)),
        commit=rider,
        context_version=draw(u32),
        proposal_key=0 if agreed.version == WireVersion.V1 else draw(u64),
        prefix_digest=draw(digest),
        base=base,
        tokens=tokens,
        hidden_rows=rows,
        hidden=draw(st.binary(min_size=size, max_size=size))
        if agreed.states is None
        else draw(st.binary(min_size=size, max_size=size)).translate(_FINITE),
    )


@st.composite
def replies(draw: st.DrawFn, agreed: Agreed) -> Reply:
    policy = draw(policies(agreed))
    width = agreed.vocab_size if policy.layout == Layout.DENSE else policy.support
    size = q_bytes(policy.layout, width)
    row = st.builds(
        ReplyRow,
        position=u32,
        token=st.integers(-(2**31), 2**31 - 1),
        entries=u32,
        checksum=u32,
        q=st.binary(min_size=size, max_size=size),
    )
    rows = draw(st.lists(row, min_size=policy.depth, max_size=policy.depth))
    return Reply(
        session=draw(st.integers(1, 2**64 - 1)),
        slot=draw(st.integers(0, agreed.max_slots - 1)),
        layout=policy.layout,
        generation=draw(st.integers(1, 2**32 - 1)),
        round=draw(st.integers(1, 2**32 - 1)),
        first_position=draw(u32),
        prefix_digest=draw(digest),
        context_version=draw(u32),
        shard_index=0,
        shard_count=1,
        shard_begin=0,
        shard_end=agreed.vocab_size,
        support=width,
        rows=ReplyRows.of(rows),
    )


@st.composite
def completes(draw: st.DrawFn, agreed: Agreed) -> Complete:
    status = draw(st.sampled_from(Status))
    whole = status == Status.OK
    return Complete(
        session=draw(st.integers(1, 2**64 - 1)),
        slot=draw(st.integers(0, agreed.max_slots - 1)),
        status=status,
        generation=draw(st.integers(1, 2**32 - 1)),
        round=draw(st.integers(1, 2**32 - 1)),
        first_position=draw(u32),
        prefix_digest=draw(digest),
        context_version=draw(u32),
        reply_bytes=draw(st.integers(80, agreed.max_reply_bytes)) if whole else 0,
        reply_checksum=draw(u32) if whole else 0,
    )


@st.composite
def commits(draw: st.DrawFn, agreed: Agreed) -> Commit:
    outcome = draw(ended_or_not)
    most = 0 if outcome == Outcome.TARGET_ONLY else agreed.max_depth
    return Commit(
        session=draw(st.integers(1, 2**64 - 1)),
        generation=draw(st.integers(1, 2**32 - 1)),
        round=draw(st.integers(1, 2**32 - 1)),
        outcome=outcome,
        accepted=draw(st.integers(0, most)),
        token=-1 if outcome == Outcome.ENDED else draw(token),
        committed=draw(st.integers(1, 2**32 - 1)),
        prefix_digest=draw(digest),
    )


@st.composite
def resets(draw: st.DrawFn) -> Reset:
    generation = draw(st.integers(1, 2**32 - 2))
    following = draw(st.integers(generation + 1, 2**32 - 1))
    return Reset(draw(st.integers(1, 2**64 - 1)), generation, following)


@st.composite
def hellos(draw: st.DrawFn, version: WireVersion) -> Hello:
    text = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=32)
    hash_ = st.binary(min_size=32, max_size=32)
    vocab_size = draw(st.integers(1, 2**24))
    v2 = [LayoutSet.DENSE, LayoutSet.SPARSE, LayoutSet.DENSE | LayoutSet.SPARSE]
    rows = draw(u16)
    role = draw(st.sampled_from(Role))
    features = Feature(draw(st.integers(0, 255)) if version == WireVersion.V2 else 0)
    dtypes = [dtype for dtype in HiddenDtype if dtype or not rows]
    if Feature.STATES in features:
        rows, dtypes = max(rows, 1), sorted(STATE_DTYPES)
    layers: tuple[int, ...] = ()
    if has_block(role, features):
        layers = tuple(sorted(draw(st.sets(u16, min_size=1, max_size=MAX_STATE_LAYERS))))
    return Hello(
        role=role,
        adaptation=draw(st.sampled_from(Adaptation)),
        layouts=draw(st.sampled_from(v2)) if version == WireVersion.V2 else LayoutSet.IDS_ONLY,
        vocab_size=vocab_size,
        max_sessions=draw(st.integers(1, 2**16 - 1)),
        max_slots=draw(st.integers(1, 2**16 - 1)),
        max_depth=draw(st.integers(1, 64)),
        shard_count=draw(st.integers(1, min(vocab_size, 2**16 - 1))),
        max_support=draw(st.integers(0, vocab_size)),
        max_context=draw(st.integers(1, 2**32 - 1)),
        max_step_bytes=draw(st.integers(1, 2**32 - 1)),
        max_reply_bytes=draw(st.integers(1, 2**32 - 1)),
        hidden_rows=rows,
        hidden_dtype=draw(st.sampled_from(dtypes)),
        hidden_width=draw(st.integers(1 if rows else 0, 2**32 - 1)),
        q_semantic=draw(text),
        verifier_semantic=draw(text),
        rng_abi=draw(text),
        precision=draw(text.filter(lambda value: len(value) <= 16)),
        id_map_hash=draw(hash_),
        tokenizer_hash=draw(hash_),
        draft_identity=draw(hash_),
        target_identity=draw(hash_),
        features=features,
        hidden_layers=layers,
        projection=draw(hash_) if layers and Feature.FUSED in features else b"",
    )


errors = st.builds(
    ErrorMessage,
    code=st.sampled_from(ProtocolErrorCode),
    session=u64,
    generation=u32,
    round=u32,
    field=st.sampled_from(["", *sorted(FIELD_NAMES)]),
)


def messages(agreed: Agreed) -> st.SearchStrategy[Message]:
    """Return every valid message on a connection with these limits."""
    return st.one_of(
        hellos(agreed.version),
        steps(agreed),
        replies(agreed),
        completes(agreed),
        commits(agreed),
        resets(),
        st.builds(Cancel, session=st.integers(1, 2**64 - 1), generation=st.integers(1, 2**32 - 1)),
        errors,
        st.builds(Ping, nonce=u64),
        st.builds(Pong, nonce=u64),
    )


STEP = Step(
    session=7,
    slot=1,
    generation=2,
    round=3,
    anchor=5,
    policy=ProposalPolicy(Layout.SPARSE, 2, 0.75, support=3, top_k=4, top_p=TOTAL, min_p=9),
    commit=CommitRider(2, 1, Outcome.CORRECTION),
    context_version=4,
    proposal_key=0x0123456789ABCDEF,
    prefix_digest=bytes(range(16)),
    base=3,
    tokens=(10, 0, 4),
    hidden_rows=1,
    hidden=b"hidden",
)
MIRRORED_STEP = replace(
    STEP,
    policy=replace(
        STEP.policy,
        processors=encode_processors(
            [
                Repetition(0, 1.25),
                Occurrence(3, 0.5, -0.25),
                NoRepeatNgram(0, 3),
                Bias((0, 4), (-100.0, float("-inf"))),
                Suppress(0, 7, (1, 2)),
                Allow(9, 11, (0, 10)),
                Sequences(2, ((float("-inf"), (1, 2)), (0.75, (3,)))),
            ]
        ),
    ),
)
"""A STEP with a processor of each kind; for AGREED_MIRRORED."""
STATES_STEP = replace(STEP, hidden_rows=2, hidden=bytes(range(22)) + b"\0\x7f")
"""A STEP with two rows of states, 2 layers of 3 elements; for AGREED_STATES; its last element
is one bit from infinity."""
REPLY = Reply(
    session=7,
    slot=1,
    layout=Layout.SPARSE,
    generation=2,
    round=3,
    first_position=6,
    prefix_digest=bytes(range(16)),
    context_version=4,
    shard_index=0,
    shard_count=1,
    shard_begin=0,
    shard_end=11,
    support=3,
    rows=ReplyRows.of(ReplyRow(6 + i, 4, 2, 99, bytes(range(24))) for i in range(2)),
)
COMPLETE = Complete(7, 1, Status.OK, 2, 3, 6, bytes(range(16)), 4, 144, 77)
COMMIT = Commit(7, 2, 3, Outcome.BONUS, 2, 9, 9, bytes(range(16)))
EXAMPLES: tuple[Message, ...] = (
    VERIFIER,
    STEP,
    REPLY,
    COMPLETE,
    COMMIT,
    Reset(7, 2, 3),
    Cancel(7, 2),
    ErrorMessage(ProtocolErrorCode.WRONG_DIGEST, 7, 2, 3, "prefix_digest"),
    Ping(5),
    Pong(5),
)
HANDSHAKE: tuple[Message, ...] = (Challenge(bytes(range(32))), Proof(bytes(range(32, 64))))
"""What never comes once two peers have agreed."""
