"""Sizes, frames and code paths of a reply do not depend on what was drawn (law 4), in any layout.

Every proposal that can be drawn from small supports is drawn, by the generator of production under
as many keys as it takes. The interpreted part is compared line by line as it runs. Compiled loops
are run in the interpreter and compared in the same way: their bounds are those of the rows, so the
lines of one row are the same whatever token it has. What comes before the draw, the model and the
rounding of its next row, depends on the tokens before as q itself does (docs/internals/audit.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import draftwire
from draftwire.conformance.transcripts import TableEngine, converse
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.kernels.cpu import quantise_loops as cpu_quantise
from draftwire.kernels.shards import loops as shards_loops
from draftwire.rows import audit, dense, sparse
from draftwire.session import reply
from draftwire.session.link import AgreedEvent, Link
from draftwire.session.proposal import Dropped, Proposal, Received
from draftwire.session.verifier_session import VerifierSession
from draftwire.verifier.hello import verifier_hello
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout, LayoutSet, Outcome, WireVersion
from spec.generators.vectors.form import binary32
from testing.fuzz.pieces import cut
from testing.toys.models import ToyTarget, constant

PROMPT = (2, 0, 1)
CORRECTION = 1  # a token that nothing is drawn from
DEPTH = 2
SECRET, NONCES = bytes(range(64)), (b"v" * 32, b"d" * 32)
PACKAGE = str(Path(draftwire.__file__).parent)
SENDING = tuple(f"{PACKAGE}/{name}/" for name in ("session", "wire", "transport", "rows"))
NOTHING = float("-inf")

Lines = list[tuple[str, int]]
Rows = Callable[[int], list[float]]


@dataclass(frozen=True)
class Shape:
    """One way of sending a q: small ones are packed, large ones lie in place."""

    layout: Layout
    vocab_size: int
    support: int = 0
    keyed: bool = False

    @property
    def version(self) -> WireVersion:
        return WireVersion.V1 if self.layout is Layout.IDS_ONLY else WireVersion.V2

    @property
    def policy(self) -> ProposalPolicy:
        temperature = 0.0 if self.layout is Layout.IDS_ONLY else 1.0
        return ProposalPolicy(self.layout, DEPTH, temperature, support=self.support)


SHAPES = {
    "dense": Shape(Layout.DENSE, 5),
    "dense, in place": Shape(Layout.DENSE, 1200),
    "sparse, packed": Shape(Layout.SPARSE, 5, 4),
    "sparse, full": Shape(Layout.SPARSE, 5, 3),
    "sparse, in place": Shape(Layout.SPARSE, 1200, 600),
    "sparse, under a key": Shape(Layout.SPARSE, 5, 4, keyed=True),
    "dense, under a key": Shape(Layout.DENSE, 5, keyed=True),
}


def traced(program: Callable[[], Any]) -> tuple[Any, Lines]:
    """What a program returns, and the lines of the package that it ran, in order."""
    lines: Lines = []

    def line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, argument: object) -> Any:
        return line if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        result = program()
    finally:
        sys.settrace(before)
    return result, lines


def tokens_of(shape: Shape) -> list[int]:
    """Ids that may be drawn, and those of the prompt."""
    last = shape.vocab_size - 1
    return sorted({0, 1, 2, 3, last} if shape.layout is Layout.IDS_ONLY else {0, 1, 2, last})


def untraced(program: Callable[[], Any]) -> tuple[Any, Lines]:
    return program(), []


@dataclass(frozen=True)
class Exchange:
    """One round: what was drawn, what was sent, and the lines of both sides."""

    tokens: tuple[int, ...]
    frames: tuple[tuple[int, int], ...]  # type and payload bytes of each frame of the answer
    answer: bytes
    drafting: Lines  # from the STEP's bytes to the answer's
    reading: Lines  # from the answer's bytes to the proposal


class Pair:
    """A drafter and a verifier with HELLO behind them."""

    def __init__(self, shape: Shape, rows: Rows, key: int) -> None:
        target = ToyTarget(constant(1.0), shape.vocab_size, max_context=64)
        mine = verifier_hello(target, version=shape.version)
        logits = {str(token): binary32(rows(token)) for token in tokens_of(shape)}
        logits["*"] = binary32(rows(0))
        self.shape = shape
        engine = TableEngine(mine, logits)
        engine.identity, engine.max_context = b"d" * 32, 64
        self.program = DrafterProgram(
            engine,
            DrafterConfig(
                shape.version,
                LayoutSet(1 << shape.layout),
                max_support=max(shape.support, 1),
                max_depth=DEPTH,
            ),
            clock=lambda: 0.0,
            key=SECRET if shape.keyed else b"",
            entropy=lambda size: NONCES[1],
        )
        connection = self.program.connect()
        assert connection is not None
        self.connection = connection
        keys = (SECRET, NONCES[0]) if shape.keyed else ()
        self.link = Link(mine, 0.0, *keys)
        self.link.start()
        agreed = [event.agreed for event in self.greet() if isinstance(event, AgreedEvent)]
        self.session = VerifierSession(7, 0, PROMPT, key, agreed[0])

    def greet(self) -> Iterable[Any]:
        while data := b"".join(self.link.outgoing()):
            yield from self.link.feed(self.answer(data), 0.0)

    def answer(self, data: bytes) -> bytes:
        return converse(self.program, self.connection, data)

    def take(self, data: bytes) -> Proposal | Dropped | None:
        result = None
        for event in self.link.feed(data, 0.0):
            assert isinstance(event, Received), event
            result = self.session.take(event, 0.0)
        return result


def exchange(
    shape: Shape, rows: Rows, key: int = 0, *, trace: bool = True, second: bool = False
) -> Exchange:
    """The first round under a proposal key, or the one after it."""
    pair = Pair(shape, rows, key)
    if second:  # whatever was drawn first is rejected, and what is committed is the same
        pair.link.send(pair.session.ask(shape.policy, 0.0, 1.0))
        pair.take(pair.answer(b"".join(pair.link.outgoing())))
        pair.session.commit(0, Outcome.CORRECTION, CORRECTION)
    pair.link.send(pair.session.ask(shape.policy, 0.0, 1.0))
    step = b"".join(pair.link.outgoing())
    run = traced if trace else untraced
    answer, drafting = run(lambda: pair.answer(step))
    proposal, reading = run(lambda: pair.take(answer))
    assert isinstance(proposal, Proposal), proposal
    plain = answer
    if shape.keyed:  # each frame is followed by its MAC
        plain, at = b"", 0
        while at < len(answer):
            end = at + 20 + int.from_bytes(answer[at + 8 : at + 12], "little")
            plain, at = plain + answer[at:end], end + 16
    frames = tuple((piece.type, len(piece.payload)) for piece in cut(plain))
    return Exchange(proposal.tokens, frames, answer, drafting, reading)


def every_proposal(
    shape: Shape, rows: Rows, supports: Iterable[tuple[int, ...]], *, second: bool = False
) -> list[Exchange]:
    """An exchange for each proposal of ``supports``: keys are tried until each has been drawn."""
    wanted = set(supports)
    keys: dict[tuple[int, ...], int] = {}
    for key in count(1):
        keys.setdefault(exchange(shape, rows, key, trace=False, second=second).tokens, key)
        assert key < 2000, wanted - set(keys)
        if wanted <= set(keys):
            break
    assert wanted == set(keys)
    return [exchange(shape, rows, key, second=second) for key in keys.values()]


def on(ids: Iterable[int], vocab_size: int, salt: int = 0) -> list[float]:
    """A row with mass on some ids, a different one for each salt."""
    row = [NOTHING] * vocab_size
    for index, token in enumerate(ids):
        row[token] = 0.25 * ((index * 7 + salt * 3) % 5)
    return row


def assert_same(exchanges: list[Exchange]) -> None:
    first, *others = exchanges
    assert len({each.answer for each in exchanges}) > 1, "it is not one reply all along"
    for other in others:
        assert other.frames == first.frames
        assert len(other.answer) == len(first.answer)
        assert other.drafting == first.drafting
        assert other.reading == first.reading


@pytest.mark.parametrize("name", SHAPES)
def test_every_draw_takes_the_same_bytes_and_lines(name: str) -> None:
    """q differs after every token, its number of entries does not."""
    shape = SHAPES[name]
    ids = (0, 2, shape.vocab_size - 1)
    tokens = every_proposal(
        shape, lambda token: on(ids, shape.vocab_size, token), product(ids, repeat=DEPTH)
    )
    assert_same(tokens)


@pytest.mark.parametrize("name", SHAPES)
def test_every_draw_of_a_following_round_takes_the_same_bytes_and_lines(name: str) -> None:
    """Both the drafts of this round and those of the one before, which were rejected, differ."""
    shape = SHAPES[name]
    ids = (0, 2, shape.vocab_size - 1)
    every = every_proposal(
        shape,
        lambda token: on(ids, shape.vocab_size, token),
        product(ids, repeat=DEPTH),
        second=True,
    )
    assert_same(every)


@pytest.mark.parametrize("name", SHAPES)
def test_supports_of_any_size_take_the_same_bytes(name: str) -> None:
    """The second row has one, two or three entries, as the first token decides."""
    shape = SHAPES[name]
    ids = (0, 2, shape.vocab_size - 1)
    after = {0: ids, 2: ids[:1], ids[2]: ids[:2]}

    def rows(token: int) -> list[float]:
        return on(ids if token == PROMPT[-1] else after.get(token, ids), shape.vocab_size)

    wanted = [(first, second) for first in ids for second in after[first]]
    exchanges = every_proposal(shape, rows, wanted)
    assert len({each.frames for each in exchanges}) == 1
    assert len({len(each.answer) for each in exchanges}) == 1
    for other in exchanges[1:]:
        assert sending(other.drafting) == sending(exchanges[0].drafting)


def sending(lines: Lines) -> Lines:
    """The lines that turn drafts and rows into bytes, and read and apply a STEP."""
    return [(file, line) for file, line in lines if file.startswith(SENDING)]


def test_a_path_that_depends_on_a_draw_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    encode_rows = reply.encode_rows

    def again_after_zero(rows: Any, tokens: Any, *arguments: Any) -> Any:
        encoded = encode_rows(rows, tokens, *arguments)
        return encode_rows(rows, tokens, *arguments) if tokens[0] == 0 else encoded

    monkeypatch.setattr(reply, "encode_rows", again_after_zero)
    shape, ids = SHAPES["sparse, packed"], (0, 2, 4)
    every = every_proposal(shape, lambda token: on(ids, 5, token), product(ids, repeat=DEPTH))
    assert len({each.frames for each in every}) == 1, "its size does not show it"
    with pytest.raises(AssertionError):
        assert_same(every)


def test_v1_takes_the_same_bytes_and_lines() -> None:
    """Greedy drafts have no words: every pair of tokens is what some model's rows say."""
    shape = Shape(Layout.IDS_ONLY, 4)
    exchanges = []
    for first, second in product(range(4), repeat=DEPTH):

        def rows(token: int, first: int = first, second: int = second) -> list[float]:
            best = first if token == PROMPT[-1] else second
            return [float(token == best) for token in range(4)]

        if first == PROMPT[-1] != second:
            continue  # after the prompt's last token the row is that of the first draft
        exchange(shape, rows)
        exchanges.append(exchange(shape, rows))
    assert len({each.tokens for each in exchanges}) == 13
    assert_same(exchanges)


def test_a_model_without_a_row_after_some_draw_takes_the_same_bytes() -> None:
    """P11: what the drafts before decide is no reason to send less."""
    for name in ("dense", "sparse, packed"):
        shape = SHAPES[name]
        ids = (0, 2, 4)

        def rows(token: int, ids: tuple[int, ...] = ids) -> list[float]:
            return [float("nan")] * 5 if token == 2 else on(ids, 5)

        wanted = [(0, x) for x in ids] + [(4, x) for x in ids] + [(2, 0)]
        exchanges = every_proposal(shape, rows, wanted)
        assert len({each.frames for each in exchanges}) == 1


# Compiled loops, in the interpreter --------------------------------------------------------------


def lines_of(loop: Any, *arguments: object) -> tuple[Any, Lines]:
    return traced(lambda: loop.py_func(*arguments))


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 300])
def test_a_draw_runs_the_same_lines_for_every_word(size: int) -> None:
    total = 1 << 9
    random = np.random.default_rng(size)
    counts = random.multinomial(total, random.dirichlet(np.full(size, 0.5))).astype(np.int32)
    cumulative = np.cumsum(counts)
    _, first = lines_of(cpu_quantise.sample_inverse_cdf, counts, 0)
    for word in range(total) if size < 128 else (*range(0, total, 31), total - 1):
        found, lines = lines_of(cpu_quantise.sample_inverse_cdf, counts, word)
        assert found == int(np.searchsorted(cumulative, word, side="right"))
        assert lines == first
    assert cpu_quantise.sample_inverse_cdf(counts, total) == -1


def test_shards_that_do_not_hold_the_token_do_the_same_work() -> None:
    counts = np.array([[3, 0, 2]], np.int32)
    out = np.empty(1, np.int64)
    _, first = lines_of(shards_loops.find_offsets, counts, np.array([-1], np.int64), out)
    assert out[0] == -1
    for offset, due in enumerate((0, 0, 0, 2, 2)):
        _, lines = lines_of(shards_loops.find_offsets, counts, np.array([offset]), out)
        assert out[0] == due
        assert lines == first


HALF, REST = TOTAL // 2, TOTAL // 4
DRAWS = {1: 0, 3: HALF, 4: TOTAL - 1}  # a word for each token of the rows below


def test_sparse_rows_are_written_read_and_audited_by_the_same_lines_for_every_token() -> None:
    ids, counts = np.array([1, 3, 4] * 2, np.int32), np.array([HALF, REST, REST] * 2, np.int32)
    used, whole = np.array([3, 3], np.int32), ((0, 5), True)
    seen: list[Lines] = []
    for drawn in product(DRAWS, repeat=2):
        tokens = np.array(drawn, np.int32)
        words = np.empty((2, 8), np.int32)
        values, back = words.view(np.float32), np.empty((2, 2, 4), np.int32)
        writing = (ids, counts, used, tokens, *whole, words, values)
        code, written = lines_of(sparse.write_rows, *writing)
        assert code == 0
        code, read = lines_of(sparse.read_rows, words, values, used, tokens, *whole, *back)
        assert code == 0
        uniform24 = np.array([DRAWS[token] for token in drawn])
        auditing = (*back, used, tokens, uniform24)
        wrong, audited = lines_of(audit.first_sparse_failure, *auditing)
        assert wrong == -1
        seen.append([*written, *read, *audited])
    assert all(each == seen[0] for each in seen)


def test_dense_rows_are_written_read_and_audited_by_the_same_lines_for_every_token() -> None:
    counts = np.array([0, HALF, 0, REST, REST], np.int32)
    seen: list[Lines] = []
    for token, word in DRAWS.items():
        values, back = np.empty(5, np.float32), np.empty(5, np.int32)
        code, written = lines_of(dense.write_row, counts, token, True, values)
        assert code == 0
        code, read = lines_of(dense.read_row, values.view(np.int32), values, token, True, back)
        assert code == 0
        auditing = back[None], np.array([token]), np.array([word])
        wrong, audited = lines_of(audit.first_dense_failure, *auditing)
        assert wrong == -1
        seen.append([*written, *read, *audited])
    assert all(each == seen[0] for each in seen)
