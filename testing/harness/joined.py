"""An asking and an answering side joined without a socket, and a drafter made of a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from draftwire.errors import ProtocolErrorCode
from draftwire.exact.counts import Counts
from draftwire.exact.quantise import allocate
from draftwire.exact.verify import draw
from draftwire.exact.words import Address, Domain, ProposalWords
from draftwire.kernels.rows import QRow
from draftwire.session.drafter_session import DrafterSession
from draftwire.session.proposal import Draft, DraftTask, Dropped, Parts, Proposal, Received
from draftwire.session.session_table import Actions, SessionTable
from draftwire.session.verifier_session import VerifierSession
from draftwire.wire import codec
from draftwire.wire.agreement import Agreed, agree, bounds, largest_reply_bytes, step_bytes
from draftwire.wire.frames import FrameReader, encode_frame
from draftwire.wire.messages import Complete, ErrorMessage, Hello, Message, ProposalPolicy, Reply
from draftwire.wire.registry import (
    PRECISION,
    Q_SEMANTIC,
    RNG_ABI,
    TOTAL,
    VERIFIER_SEMANTIC,
    Adaptation,
    HiddenDtype,
    Layout,
    LayoutSet,
    Outcome,
    Role,
    Status,
)

VOCABULARY = 7
SUPPORT = 3
MAX_CONTEXT = 200
KEY = 0x0123456789ABCDEF
PROMPT = (1, 2, 3)

SPARSE = ProposalPolicy(Layout.SPARSE, depth=3, temperature=1.0, support=SUPPORT)
DENSE = ProposalPolicy(Layout.DENSE, depth=3, temperature=1.0)
IDS_ONLY = ProposalPolicy(Layout.IDS_ONLY, depth=3, temperature=0.0)
V2 = LayoutSet.DENSE | LayoutSet.SPARSE


def hello(role: Role, layouts: LayoutSet = V2, **changes: object) -> Hello:
    base = Hello(
        role=role,
        adaptation=Adaptation.ANY,
        layouts=layouts,
        vocab_size=VOCABULARY,
        max_sessions=3,
        max_slots=2,
        max_depth=5,
        shard_count=1,
        max_support=4,
        max_context=MAX_CONTEXT,
        max_step_bytes=step_bytes(MAX_CONTEXT),
        max_reply_bytes=largest_reply_bytes(layouts, VOCABULARY, 5, 4),
        hidden_rows=0,
        hidden_dtype=HiddenDtype.NONE,
        hidden_width=0,
        q_semantic=Q_SEMANTIC,
        verifier_semantic=VERIFIER_SEMANTIC,
        rng_abi=RNG_ABI,
        precision=PRECISION,
        id_map_hash=bytes(32),
        tokenizer_hash=bytes(32),
        draft_identity=bytes(32),
        target_identity=bytes(32),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def agreement(layouts: LayoutSet = V2, **changes: object) -> Agreed:
    return agree(hello(Role.VERIFIER, layouts, **changes), hello(Role.DRAFTER, layouts, **changes))


def row_after(tokens: Sequence[int], policy: ProposalPolicy) -> QRow:
    """q of the next token: a fixed function of every token before it and of the policy."""
    digest = hashlib.sha256(repr(tuple(tokens)).encode()).digest()
    order = sorted(range(VOCABULARY), key=lambda token: digest[token])
    if policy.temperature == 0:
        width = 1
    else:
        width = policy.support if policy.layout is Layout.SPARSE else VOCABULARY - 1
    ids = sorted(order[:width])
    counts = allocate([digest[8 + token] + 1 for token in ids])
    assert sum(counts) == TOTAL
    return QRow.of_counts(
        Counts(VOCABULARY, TOTAL, tuple(ids), tuple(counts)),
        dense=policy.layout is Layout.DENSE,
    )


Drawn = list[tuple[int, QRow]]


class HashDrafter:
    """Keeps one state a session, as an engine does; remembers every draw by its address."""

    def __init__(self) -> None:
        self.states: dict[int, list[int]] = {}
        self.proposals: dict[tuple[int, int, int], Drawn] = {}
        self.draws: dict[tuple[int, Address], tuple[int, ...]] = {}

    def draft(self, task: DraftTask, prefix: Sequence[int] | None = None) -> Draft:
        """Do a task as an engine would; ``prefix``: what the state must come to before a draw."""
        state = self.states.setdefault(task.session, [])
        assert task.cached_tokens <= len(state), "the session counts on a state that is not there"
        assert task.new_tokens, "at least the anchor is fed"
        del state[task.cached_tokens :]
        state += task.new_tokens
        assert len(state) == task.first_position
        assert prefix is None or state == list(prefix), "the state is of other tokens"
        drawn: Drawn = []
        words = ProposalWords(task.proposal_key)
        for index in range(task.policy.depth):
            position = task.first_position + index
            row = row_after(state, task.policy)
            address = Address(task.generation, task.round, position, Domain.PROPOSAL)
            token = draw(row.exact(), words.words(address))
            context = (*state, token)
            assert self.draws.setdefault((task.session, address), context) == context, (
                "one address, two draws"
            )
            drawn.append((token, row))
            if index < task.policy.depth - 1:
                state.append(token)
        self.proposals[task.session, task.generation, task.round] = drawn
        return Draft([token for token, _ in drawn], [row for _, row in drawn])


def received(message: Message, agreed: Agreed) -> Received:
    """The message as it comes out of a frame."""
    payload = b"".join(bytes(part) for part in codec.encode(message))
    frame = encode_frame(agreed.version, codec.message_type(message), payload)
    return Received(message, len(payload), int.from_bytes(frame[-1], "little"))


def unpacked(parts: Parts, agreed: Agreed) -> Iterator[Received]:
    """The messages in some frames, each with memory of its own."""
    reader = FrameReader(bounds(agreed, receiver=Role.VERIFIER))
    for frame in reader.feed(b"".join(parts)):
        payload = memoryview(bytes(frame.payload))
        message = codec.decode(frame.type, frame.version, payload, agreed)
        yield Received(message, len(payload), frame.checksum)


def held_by(session: DrafterSession) -> tuple[object, ...]:
    """All that a drafter's session holds, to be compared."""
    cached = session.cached
    return (
        session.state,
        session.generation,
        session.round,
        session.tokens,
        session.prefix_digest,
        session.latest_step,
        tuple(map(bytes, session.kept_answer)),
        session.drafts,
        session.asked_at,
        (cached.prefix.tokens(), cached.length, cached.drafts),
    )


class Joined:
    """One session's two halves; messages cross as bytes, at once and unharmed."""

    def __init__(
        self, agreed: Agreed | None = None, *, max_context: int = 0, session: int = 1
    ) -> None:
        self.agreed = agreement() if agreed is None else agreed
        self.asking = VerifierSession(session, 0, PROMPT, KEY, self.agreed)
        self.drafter = HashDrafter()
        self.max_context = max_context
        self.table = SessionTable(self.agreed, max_context=max_context)
        self.policy = IDS_ONLY if self.agreed.layouts == LayoutSet.IDS_ONLY else SPARSE

    def to_drafter(self, message: Message, *, as_bytes: bool = True) -> Actions:
        """Deliver a message; without bytes, so that the codec does not refuse it first."""
        if not as_bytes:
            return self.table.receive(message)
        kind = codec.message_type(message)
        payload = b"".join(bytes(part) for part in codec.encode(message))
        version = self.agreed.version
        return self.table.receive(codec.decode(kind, version, memoryview(payload), self.agreed))

    def answer(self, message: Message, *, as_bytes: bool = True) -> list[Received]:
        """Deliver a message, do what it asks for, and return what comes back."""
        actions = self.to_drafter(message, as_bytes=as_bytes)
        parts = actions.parts
        if actions.task is not None:
            drawn = self.drafter.draft(actions.task, self.table[actions.task.session].tokens)
            parts = self.table.reply(actions.task, drawn)
        return list(unpacked(parts, self.agreed))

    def ask(self, policy: ProposalPolicy | None = None) -> list[Received]:
        """Ask and return the answer, not yet taken."""
        return self.answer(self.asking.ask(policy or self.policy, 0.0, 1.0))

    def take(self, answer: Sequence[Received]) -> Proposal | Dropped | None:
        result = None
        for message in answer:
            taken = self.asking.take(message, 0.5)
            assert result is None or taken is None
            result = result or taken
        return result

    def propose(self, policy: ProposalPolicy | None = None) -> Proposal:
        """One good round up to its proposal; both sides hold the same prefix then."""
        proposal = self.take(self.ask(policy))
        assert isinstance(proposal, Proposal), proposal
        self.check_proposal(proposal)
        return proposal

    def check_proposal(self, proposal: Proposal) -> None:
        drawn = self.drafter.proposals[self.asking.session, proposal.generation, proposal.round]
        assert proposal.tokens == tuple(token for token, _ in drawn)
        for ours, (token, theirs) in zip(proposal.rows, drawn, strict=True):
            assert ours.exact() == theirs.exact()
            assert ours.of(token) > 0
        session = self.table[self.asking.session]
        assert session.tokens == self.asking.tokens
        assert session.prefix_digest == self.asking.prefix_digest

    def commit(self, proposal: Proposal | None, accepted: int = 0) -> None:
        """End the round with ``accepted`` drafts and a token that is not the rejected draft."""
        if proposal is None:
            self.asking.commit(0, Outcome.TARGET_ONLY, 0)
        elif accepted == len(proposal.tokens):
            self.asking.commit(accepted, Outcome.BONUS, 0)
        else:
            token = (proposal.tokens[accepted] + 1) % VOCABULARY
            self.asking.commit(accepted, Outcome.CORRECTION, token)

    def round(self, accepted: int = 0) -> Proposal:
        proposal = self.propose()
        self.commit(proposal, accepted)
        return proposal

    def agree_after_commit(self) -> None:
        """Tell the drafter how the last round ended; both prefixes are equal then."""
        message = self.asking.commit_message()
        assert message is not None
        assert self.answer(message) == []
        session = self.table[self.asking.session]
        assert session.tokens == self.asking.tokens
        assert session.prefix_digest == self.asking.prefix_digest


def reply_of(answer: Sequence[Received]) -> Reply:
    return next(item.message for item in answer if isinstance(item.message, Reply))


def complete_of(answer: Sequence[Received]) -> Complete:
    return next(item.message for item in answer if isinstance(item.message, Complete))


def error_of(answer: Sequence[Received]) -> ProtocolErrorCode:
    (only,) = answer
    assert isinstance(only.message, ErrorMessage)
    return only.message.code


def status_of(answer: Sequence[Received]) -> Status:
    (only,) = answer
    assert isinstance(only.message, Complete)
    return only.message.status
