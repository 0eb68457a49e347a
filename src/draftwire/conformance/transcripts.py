"""Checks of whole conversations: the drafter program, and a verifier's half of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from draftwire.conformance.arithmetic import request_of
from draftwire.conformance.vectors import Mismatch, Vector, binary32, expect
from draftwire.conformance.wire import hello_of
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import Connection, DrafterConfig, DrafterProgram
from draftwire.drafter.propose import propose
from draftwire.exact.words import KeyedWords
from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.protocol import Round
from draftwire.kernels.rows import QRow
from draftwire.session.link import AgreedEvent, Closed, Link
from draftwire.session.proposal import Parts, Received
from draftwire.session.verifier_session import Dropped, Proposal, VerifierSession
from draftwire.verifier.judge import Judgement, judge
from draftwire.wire.agreement import version_of
from draftwire.wire.messages import Hello, ProposalPolicy
from draftwire.wire.registry import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Adaptation,
    Feature,
    Layout,
    MessageType,
    Outcome,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEADLINE: Final = 1.0  # seconds; no clock runs here
_HELLO_REFUSED: Final = 32
_CODE_AT: Final = 16  # offset of an ERROR's code in its payload
_FIELD_AT: Final = 20


def row_of(table: dict[str, Any], context: Sequence[int]) -> Any:
    """The row of a vector's table: by the last token, or "*"."""
    return table.get(str(context[-1]), table["*"])


def comparable(data: bytes) -> str:
    """Frames as digits, without the field names of ERRORs, which only HELLO_REFUSED must give."""
    shown, at = [], 0
    while len(data) - at >= HEADER_BYTES:
        length = int.from_bytes(data[at + 8 : at + 12], "little")
        end = at + HEADER_BYTES + length + TRAILER_BYTES
        payload = data[at + HEADER_BYTES : end - TRAILER_BYTES]
        code = int.from_bytes(payload[_CODE_AT : _CODE_AT + 2], "little")
        if data[at + 5] == MessageType.ERROR and code != _HELLO_REFUSED:
            shown.append(data[at : at + HEADER_BYTES].hex() + payload[:_FIELD_AT].hex())
        else:
            shown.append(data[at:end].hex())
        at = end
    return " ".join([*shown, data[at:].hex()])


def expect_bytes(what: str, found: bytes, expected: str) -> None:
    """Compare bytes sent with those of a vector."""
    expect(what, comparable(found), comparable(bytes.fromhex(expected)))


# A drafter ---------------------------------------------------------------------------------------


@dataclass
class TableContext:
    """The tokens themselves stand for their state."""

    tokens: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.tokens)


class TableEngine:
    """A drafting model whose logits are a table (:class:`draftwire.drafter.engine.DraftEngine`)."""

    def __init__(self, hello: Hello, logits: dict[str, str]) -> None:
        self.vocab_size = hello.vocab_size
        self.max_context = hello.max_context
        self.identity = hello.draft_identity
        self.tokenizer_hash = hello.tokenizer_hash
        self.id_map_hash = hello.id_map_hash
        self.adaptation: Adaptation = hello.adaptation
        self._logits = {context: binary32(row) for context, row in logits.items()}

    def open(self) -> TableContext:
        """Return an empty context."""
        return TableContext()

    def close(self, context: TableContext) -> None:
        """Nothing is held."""

    def truncate(self, context: TableContext, length: int) -> None:
        """Keep the first ``length`` tokens."""
        del context.tokens[length:]

    def forward(self, batch: Sequence[tuple[TableContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Return the rows after the last tokens."""
        rows = []
        for context, tokens in batch:
            context.tokens.extend(tokens)
            rows.append(row_of(self._logits, context.tokens))
        return np.array(rows, np.float32)


def drafter_of(
    vector: Vector, key: bytes = b"", nonce: bytes = b""
) -> DrafterProgram[TableContext]:
    """The drafter program with a vector's HELLO, table and limits, and its key and nonce if any."""
    payload = bytes.fromhex(vector["hello"])
    layouts = int.from_bytes(payload[2:4], "little")
    hello = hello_of(vector["hello"], 1 if layouts == 1 << Layout.IDS_ONLY else 2)
    config = DrafterConfig(
        version=version_of(hello.layouts),
        layouts=hello.layouts,
        max_sessions=hello.max_sessions,
        max_slots=hello.max_slots,
        max_depth=hello.max_depth,
        max_support=hello.max_support,
        max_context=hello.max_context,
        max_reply_bytes=hello.max_reply_bytes,
        mirror=Feature.MIRROR in hello.features,
        peer=limits_of(vector),
    )
    engine = TableEngine(hello, vector["logits"])
    return DrafterProgram(
        engine,
        config,
        proposer=propose,  # so that its HELLO is the vector's, without room for processors
        clock=lambda: 0.0,
        key=key,
        entropy=lambda size: nonce,
    )


def limits_of(vector: Vector) -> PeerLimits:
    """What one verifier may cost where a vector says so (P24)."""
    limits = vector.get("limits")
    if limits is None:
        return PeerLimits()
    return PeerLimits(refusals_at_once=limits["refusals"], max_positions=limits["positions"])


def converse(
    program: DrafterProgram[TableContext], connection: Connection[TableContext], data: bytes
) -> bytes:
    """What a drafter sends when ``data`` comes in."""
    connection.feed(data)
    while program.waiting:
        program.draft()
    return connection.outgoing.drain()


def check_drafter(vector: Vector) -> None:
    """Bytes in, bytes out; the same when the bytes come one by one."""
    for step in (None, 1):
        program = drafter_of(vector)
        connection = program.connect()
        if connection is None:
            raise Mismatch("the drafter takes no connection")
        for number, turn in enumerate(vector["exchange"], start=1):
            data = bytes.fromhex(turn["in"])
            size = step or len(data) or 1
            pieces = [data[at : at + size] for at in range(0, len(data), size)]
            found = b"".join(converse(program, connection, piece) for piece in pieces)
            if step is None or not _overlapping(data):
                expect_bytes(f"answer {number}", found, turn["out"])
        expect("closed", connection.closing, vector["closed"])


def _overlapping(data: bytes) -> bool:
    """Whether several frames come at once: byte by byte, the first is answered before the last."""
    length = int.from_bytes(data[8:12], "little")
    return len(data) > HEADER_BYTES + length + TRAILER_BYTES


# A verifier --------------------------------------------------------------------------------------


class VerifierRun:
    """A verifier's link and session, driven by the actions of a vector."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        self._link = Link(hello_of(vector["hello"], 2), 0.0)
        self._source = KeyedWords(request_of(vector))
        self._key = request_of(vector).proposal_key
        self._session: VerifierSession | None = None
        self._proposal: Proposal | None = None

    @property
    def session(self) -> VerifierSession:
        """The session; there is one once both HELLOs are agreed."""
        if self._session is None:
            raise Mismatch("nothing is agreed yet")
        return self._session

    def sent(self) -> bytes:
        """What the link has to send now."""
        return joined(self._link.outgoing())

    def connect(self, action: Vector) -> None:
        """Both HELLOs."""
        self._link.start()
        expect_bytes("HELLO", self.sent(), action["out"])
        for event in self._link.feed(bytes.fromhex(action["in"]), 0.0):
            if isinstance(event, AgreedEvent):
                self._session = VerifierSession(
                    self._vector["session"],
                    self._vector["slot"],
                    self._vector["prompt"],
                    self._key,
                    event.agreed,
                )

    def ask(self, action: Vector) -> None:
        """The next STEP."""
        policy = dict(action["policy"])
        (policy["temperature"],) = binary32(policy["temperature"])
        policy["layout"] = Layout(policy["layout"])
        self._link.send(self.session.ask(ProposalPolicy(**policy), 0.0, DEADLINE))
        expect_bytes("STEP", self.sent(), action["out"])

    def retry(self, action: Vector) -> None:
        """The STEP once more."""
        self._link.send(self.session.retry())
        expect_bytes("STEP", self.sent(), action["out"])

    def receive(self, action: Vector) -> None:
        """Bytes come in; at most one of a proposal and a loss comes of them."""
        found: list[Proposal | Dropped] = []
        for event in self._link.feed(bytes.fromhex(action["in"]), 0.0):
            if isinstance(event, Closed):
                raise Mismatch(f"the connection is closed: {event.error}")
            if isinstance(event, Received):
                result = self.session.take(event, 0.0)
                found += [] if result is None else [result]
        lost = any(isinstance(one, Dropped) for one in found)
        expect("proposal lost", lost, action.get("dropped", False))
        shown = [proposal_shown(one) for one in found if isinstance(one, Proposal)]
        expect("proposals", shown, [action["proposal"]] if "proposal" in action else [])
        self._proposal = next((one for one in found if isinstance(one, Proposal)), self._proposal)

    def verify(self, action: Vector) -> None:
        """Judge the proposal and commit."""
        proposal = self._proposal
        if proposal is None:
            raise Mismatch("there is no proposal to verify")
        prefix = self.session.tokens
        depth = len(proposal.tokens)
        rows = [self._row((*prefix, *proposal.tokens[:i])) for i in range(depth + 1)]
        verdict = self._judged(rows, proposal.tokens, proposal.rows)
        outcome = verdict.outcome
        found = {
            "accepted": verdict.accepted,
            "token": verdict.tokens[-1],
            "outcome": outcome.name.lower(),
        }
        expect("verdict", found, {name: action[name] for name in found})
        self.session.commit(verdict.accepted, outcome, verdict.tokens[-1])
        self._proposal = None

    def alone(self, action: Vector) -> None:
        """A target-only round."""
        session = self.session
        (token,) = self._judged([self._row(session.tokens)], (), ()).tokens
        expect("token", token, action["token"])
        session.commit(0, Outcome.TARGET_ONLY, token)

    def _judged(
        self, rows: Sequence[NDArray[np.float64]], tokens: Sequence[int], q: Sequence[QRow]
    ) -> Judgement:
        """What the CPU's kernels say of the round that is on."""
        session = self.session
        where = session.generation, session.round, len(session)
        this = Round(tokens, q, 0, len(rows), self._source, *where)
        return judge(CpuKernels(), np.stack(rows), [this])[0]

    def reset(self, action: Vector) -> None:
        """The generation ends; what was proposed and not committed is of no use any more."""
        self._proposal = None
        for message in self.session.reset():
            self._link.send(message)
        expect_bytes("RESET", self.sent(), action["out"])

    def skip(self, action: Vector) -> None:
        """A round that is not asked for."""
        self.session.skip()

    def give_up(self, action: Vector) -> None:
        """The deadline has passed."""
        self.session.give_up()

    def end(self, action: Vector) -> None:
        """The text ends inside the accepted drafts."""
        self.session.commit(action["accepted"], Outcome.ENDED, None)

    def finish(self, action: Vector) -> None:
        """The last commit and CANCEL."""
        for message in self.session.finish():
            self._link.send(message)
        expect_bytes("last messages", self.sent(), action["out"])

    def _row(self, context: Sequence[int]) -> NDArray[np.float64]:
        return np.array(row_of(self._vector["target"], context), np.float64)


def joined(parts: Parts) -> bytes:
    """Bytes to be written, in one piece."""
    return b"".join(parts)


def proposal_shown(proposal: Proposal) -> Vector:
    """A proposal in the form of the vectors."""
    rows = [row.exact() for row in proposal.rows]
    return {
        "tokens": list(proposal.tokens),
        "q": [{"ids": list(row.ids), "counts": list(row.counts)} for row in rows],
    }


def check_verifier(vector: Vector) -> None:
    """Every action in turn."""
    run = VerifierRun(vector)
    actions: dict[str, Callable[[Vector], None]] = {
        "connect": run.connect,
        "ask": run.ask,
        "retry": run.retry,
        "receive": run.receive,
        "verify": run.verify,
        "alone": run.alone,
        "skip": run.skip,
        "reset": run.reset,
        "give_up": run.give_up,
        "end": run.end,
        "finish": run.finish,
    }
    for number, action in enumerate(vector["actions"], start=1):
        try:
            actions[action["do"]](action)
        except Mismatch as mismatch:
            raise Mismatch(f"action {number}, {action['do']}: {mismatch}") from None
