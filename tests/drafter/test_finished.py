"""Texts that are over serve later ones that begin alike, within one key (case M13)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.drafter.contexts import HeldContext
from draftwire.drafter.finished import FinishedContexts
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.session.prefix import common_tokens
from draftwire.session.proposal import Proposal
from draftwire.telemetry.drafter_metrics import DrafterView
from draftwire.transport.keys import PresharedKey
from draftwire.verifier.client import DraftClient
from draftwire.verifier.generate import Kind, generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from testing.harness.paths import drafting
from testing.toys.models import ToyContext, ToyDrafter, ToyTarget, mixed
from tests.verifier.test_laws import Shared, dense, enumerated, sparse, tables, targets_law

VOCABULARY = 16
PROMPT = [(7 * at) % VOCABULARY for at in range(200)]
KEEPS = DrafterConfig(kept_prefix_memory=1 << 20)
POLICY = sparse(4, 8)


def pair() -> tuple[ToyDrafter, ToyTarget]:
    table = mixed(VOCABULARY, 5)
    return ToyDrafter(table, VOCABULARY), ToyTarget(table, VOCABULARY)


@contextmanager
def local(
    engine: ToyDrafter, target: ToyTarget, config: DrafterConfig = KEEPS, key: bytes = b""
) -> Iterator[tuple[DrafterProgram[ToyContext], LocalDrafter]]:
    """A program, and a verifier of it; nothing is left open behind both."""
    program = DrafterProgram(engine, config, key=key)
    with LocalDrafter(program, target, key=key) as drafter:
        yield program, drafter
    program.shut_down()
    assert not engine.contexts


def turn(drafter: DraftClient, target: ToyTarget, prompt: Sequence[int], tokens: int = 20) -> Any:
    """One text; returns its tokens and report."""
    sampling = Sampling(seed=len(prompt), max_tokens=tokens)
    with generate(target, drafter, prompt, sampling, POLICY) as text:
        made = [each.token for each in text]
    return made, text.report


def test_the_second_turn_of_a_chat_reads_its_new_tokens_and_the_last_two() -> None:
    engine, target = pair()
    with local(engine, target) as (program, drafter):
        made, _ = turn(drafter, target, PROMPT)
        before = program.counters.fed_tokens
        second = [*PROMPT, *made, 1, 2, 3, 4, 5]
        request = drafter.open(second, 3)
        assert isinstance(request.propose(POLICY), Proposal)
        # The last draft of a proposal is never read, nor is the bonus behind it.
        assert program.counters.fed_tokens - before <= 5 + 2
        request.close()
        assert program.finished.counters.reused == 1
        assert program.finished.counters.tokens >= len(PROMPT) + len(made) - 2
        _, report = turn(drafter, target, [*second, 6], 40)
        assert report.accepted > 0
        view = DrafterView.of(program)
        assert view.finished.reused == 2
        assert view.finished_contexts == len(engine.contexts) == 1
        assert view.finished_bytes == 2 * engine.context_bytes(engine.contexts[0])


def test_texts_are_the_same_as_without() -> None:
    prompts = [PROMPT, [*PROMPT[:150], 3, 3], [*PROMPT, 1, 2], PROMPT[:40], [*PROMPT, 1, 2, 9]]
    found = []
    for config in (DrafterConfig(), KEEPS):
        engine, target = pair()
        with local(engine, target, config) as (program, drafter):
            found.append([turn(drafter, target, each)[0] for each in prompts])
            reused = program.finished.counters.reused
            assert (reused > 2) is bool(config.kept_prefix_memory)
    assert found[0] == found[1]


def test_a_context_is_with_one_session_at_a_time() -> None:
    engine, target = pair()
    with local(engine, target) as (program, drafter):
        turn(drafter, target, PROMPT)
        requests = [drafter.open(PROMPT, key) for key in (1, 2)]
        proposals = [each.propose(POLICY) for each in requests]
        assert all(isinstance(each, Proposal) for each in proposals)
        assert program.finished.counters.reused == 1
        assert len({id(each) for each in engine.contexts}) == 2
        for each in requests:
            each.close()


def test_what_is_kept_is_bounded_and_the_longest_unused_goes_first() -> None:
    engine, target = pair()
    room = 8 * 700  # four bytes a token in the model, and as many for the token
    with local(engine, target, replace(KEEPS, kept_prefix_memory=room)) as (program, drafter):
        for at in range(6):
            turn(drafter, target, [at, *PROMPT])
            assert program.finished.bytes <= room
        assert program.finished.counters.evicted == 3
        fed = program.counters.fed_tokens
        turn(drafter, target, [5, *PROMPT], 1)
        turn(drafter, target, [4, *PROMPT], 2)
        assert program.counters.fed_tokens - fed < 60
        turn(drafter, target, [0, *PROMPT], 2)  # went for newer ones
        assert program.counters.fed_tokens - fed > 200


def test_another_connection_without_a_key_gets_nothing_and_an_end_frees_all() -> None:
    engine, target = pair()
    program = DrafterProgram(engine, KEEPS)
    with LocalDrafter(program, target) as first:
        turn(first, target, PROMPT)
        assert len(program.finished) == 1
        with LocalDrafter(program, target) as second:
            turn(second, target, PROMPT)
            assert program.finished.counters.reused == 0
    assert (len(program.finished), program.finished.bytes, engine.contexts) == (0, 0, [])


def test_connections_of_one_key_share_and_a_broken_one_goes_on() -> None:
    engine, target = pair()
    key = PresharedKey(bytes(range(32))).secret
    program = DrafterProgram(engine, KEEPS, key=key)
    with LocalDrafter(program, target, key=key) as first:
        request = first.open(PROMPT, 1)
        assert isinstance(request.propose(POLICY), Proposal)
    fed = program.counters.fed_tokens  # it ended in the middle of a text
    with LocalDrafter(program, target, key=key) as second:
        turn(second, target, PROMPT, 2)
    assert program.counters.fed_tokens - fed < 8
    program.drain()
    assert not engine.contexts


def test_owners_are_told_apart() -> None:
    closed: list[int] = []
    kept: FinishedContexts[Any] = FinishedContexts(1 << 10, closed.append)
    tokens = array("i", range(32))
    for owner, context in ((b"one", 1), (b"two", 2)):
        kept.put(owner, HeldContext(context, tokens=tokens[:]), 100)  # type: ignore[arg-type]
    assert kept.take(b"three", tokens) is None
    found = kept.take(b"two", tokens[:20])
    assert found is not None
    assert (found[0].context, found[1]) == (2, 20)
    kept.forget(b"two")
    assert closed == []
    kept.forget(b"one")
    assert (closed, len(kept), kept.bytes) == ([1], 0, 0)


def test_the_longest_common_prefix_is_taken_and_a_short_one_left() -> None:
    kept: FinishedContexts[Any] = FinishedContexts(1 << 10, lambda context: None)
    for context, length in ((1, 20), (2, 28), (3, 24)):
        tokens = array("i", [*range(length), 99, 98])
        kept.put(b"", HeldContext(context, tokens=tokens), 1)  # type: ignore[arg-type]
    assert kept.take(b"", array("i", range(15))) is None
    found = kept.take(b"", array("i", range(100)))
    assert found is not None
    assert (found[0].context, found[1]) == (2, 28)


def test_who_keeps_little_loses_nothing_to_who_keeps_much() -> None:
    kept: FinishedContexts[Any] = FinishedContexts(1000, lambda context: None)
    tokens = array("i", range(16))
    for at in range(2):
        kept.put(b"small", HeldContext(at, tokens=tokens[:]), 100)  # type: ignore[arg-type]
    for at in range(20):
        kept.put(b"large", HeldContext(at, tokens=tokens[:]), 100)  # type: ignore[arg-type]
        assert kept.bytes <= 1000
    found = [kept.take(b"small", tokens) for _ in range(3)]
    assert [each and each[0].context for each in found] == [0, 1, None]
    found = [kept.take(b"large", tokens) for _ in range(5)]
    assert [each and each[0].context for each in found] == [16, 17, 18, 19, None]
    assert (kept.bytes, len(kept)) == (0, 0)


def test_contexts_of_no_bytes_are_bounded_by_their_tokens() -> None:
    closed: list[int] = []
    kept: FinishedContexts[Any] = FinishedContexts(1000, closed.append)
    for at in range(50):
        context = HeldContext(at, tokens=array("i", range(16)))
        kept.put(b"", context, 0)  # type: ignore[arg-type]
    assert len(kept) == 1000 // 64
    assert closed == list(range(50 - 1000 // 64))


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 64, 1000])
def test_common_tokens_at_every_place(most: int) -> None:
    whole = array("i", range(most))
    assert common_tokens(whole, whole) == most
    for at in range(most):
        other = whole[:]
        other[at] = -1
        assert common_tokens(whole, other) == common_tokens(other, whole) == at
        assert common_tokens(whole, whole[:at]) == at


@dataclass
class Windowed(ToyDrafter):
    """An engine that reads few tokens."""

    max_context: int = 64


def test_a_text_of_which_a_window_is_read_is_not_kept() -> None:
    table = mixed(VOCABULARY, 5)
    engine, target = Windowed(table, VOCABULARY), ToyTarget(table, VOCABULARY)
    with local(engine, target, replace(KEEPS, max_context=4096)) as (program, drafter):
        for _ in range(2):
            _, report = turn(drafter, target, PROMPT)
            assert report.accepted > 0
        assert (program.finished.counters.kept, program.finished.counters.reused) == (0, 0)


def test_the_law_is_the_targets_with_contexts_of_other_texts() -> None:
    p, q = tables(2, 6, 2)
    prompt = (0, 1) * 10
    target, engine = ToyTarget(p, 2), ToyDrafter(q, 2)
    shared, seen = Shared(), set[Kind]()
    program = DrafterProgram(engine, KEEPS, source=shared)
    with LocalDrafter(program, target, audit=False) as client:

        def attach(tree: Any) -> DraftClient:
            shared.tree = tree
            return client

        law = enumerated(attach, target, prompt, dense(2), 3, 2, seen)
        assert program.finished.counters.reused > 10
    assert law == targets_law(p, prompt, 3, 2)
    assert Kind.ACCEPTED in seen


def test_a_transformers_model_has_the_same_rows(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from draftwire.engines.hf import HfDraftEngine, embedded_folder

    engine = HfDraftEngine.from_folder(embedded_folder("drafter"))
    target, prompt = pair()[1], [int(each) % 3000 for each in np.arange(300) * 37 + 5]
    rows: list[NDArray[np.float32]] = []
    for again in (False, True):
        context = engine.open()
        if again:
            engine.forward([(context, prompt[:250])])
            engine.forward([(context, [1, 2, 3])])
            engine.truncate(context, 250)
        engine.forward([(context, prompt[context.length :])])
        rows.append(engine.forward([(context, [7])])[0].numpy())
        assert engine.context_bytes(context) >= 2 * 301 * 192 * 4
        engine.close(context)
    assert np.abs(rows[0] - rows[1]).max() < 1e-3
    assert torch is not None
    assert target is not None


def test_off_unless_asked_for() -> None:
    engine, target = pair()
    with drafting("colocated", engine, target) as client:
        turn(client, target, PROMPT)
        assert engine.contexts == []
