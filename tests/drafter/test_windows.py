"""Texts that are longer than the drafting model reads: it reads a window of their last tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import pytest

from draftwire.drafter.contexts import LONGEST_PREFIX, Window
from draftwire.drafter.hello import drafter_hello
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine
from draftwire.errors import ConfigurationError
from draftwire.session.proposal import Proposal
from draftwire.verifier.emission import Emission, Kind
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout, Outcome
from testing.harness.paths import PATHS, drafting
from testing.harness.tiny_models import tiny_llama, tiny_tokenizer
from testing.toys.models import Table, ToyContext, ToyDrafter, ToyTarget, mixed
from tests.drafter.peer import Peer

V = 9
DENSE = ProposalPolicy(Layout.DENSE, 4, 1.0)


def recent(salt: int, *, sharpness: float = 2.0) -> Table:
    """A table of the last three tokens, wherever they stand."""
    table = mixed(V, salt, sharpness=sharpness)
    return lambda context: table(context[-3:])


def bounded(table: Table, most: int) -> Table:
    """The table of a model that reads no more tokens than that."""

    def weights(context: tuple[int, ...]) -> Sequence[float]:
        assert len(context) <= most
        return table(context)

    return weights


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 504])
def test_a_window_moves_on_by_half_of_itself_and_follows_from_the_length_alone(size: int) -> None:
    window = Window(size)
    starts = [window.start(length) for length in range(1, 6 * size + 2)]
    assert starts == sorted(starts)
    moves = sum(before != after for before, after in pairwise(starts))
    for length, start in enumerate(starts, 1):
        assert start == 0 if length <= size else size // 2 <= length - start <= size
        assert length - start >= 1
    assert moves <= 6 * size / max(size // 2, 1)


def test_a_window_is_there_only_where_texts_may_be_longer_than_the_model_reads() -> None:
    assert Window.of(512, DrafterConfig(max_context=512)).start(511) == 0
    assert Window.of(LONGEST_PREFIX, DrafterConfig()) == Window(0)
    assert Window.of(512, DrafterConfig(max_depth=8)) == Window(504)
    assert Window.of(4, DrafterConfig(max_depth=8)) == Window(1)


def test_hello_names_the_longest_prefix_and_no_deeper_proposal_than_the_model_reads() -> None:
    engine = ToyDrafter(recent(1), V, max_context=6)
    hello = drafter_hello(engine, DrafterConfig(max_depth=8))
    assert (hello.max_context, hello.max_depth) == (LONGEST_PREFIX, 5)
    assert drafter_hello(engine, DrafterConfig(max_context=100)).max_context == 100
    long = ToyDrafter(recent(1), V, max_context=1 << 20)
    assert drafter_hello(long, DrafterConfig()).max_context == 1 << 20
    with pytest.raises(ConfigurationError, match="at most"):
        DrafterConfig(max_context=1 << 40)


@pytest.mark.parametrize("path", PATHS)
def test_m14_a_text_is_drafted_past_the_context_of_the_drafter(path: str) -> None:
    """Case M14: target 4,096, drafter 512: as many drafts are accepted after token 512 as before.

    The model reads each token about twice, and never more than its context at once.
    """
    target = ToyTarget(recent(1), V)
    engine = ToyDrafter(bounded(recent(1, sharpness=1.6), 512), V, max_context=512)
    with drafting(path, engine, target, config=DrafterConfig(max_depth=4)) as drafter:
        run = generate(target, drafter, [1] * 400, Sampling(seed=4, max_tokens=700), DENSE)
        emissions = list(run)
        assert not run.report.misses
    before, after = share(emissions, 0, 110), share(emissions, 112, 700)
    assert after > 0.9 * before > 0
    text = 400 + len(emissions)
    assert engine.extended < 2.2 * text + 4 * run.report.rounds


def share(emissions: Sequence[Emission], begin: int, end: int) -> float:
    kinds = [each.kind for each in emissions if begin <= each.index < end]
    return kinds.count(Kind.ACCEPTED) / len(kinds)


def test_m14_transformers_model_reads_past_its_positions() -> None:
    """Case M14, with models: a drafter of 128 positions, a target of 4,096, a prompt of 200."""
    model = tiny_llama(16)
    large = copy.deepcopy(model)
    large.config.max_position_embeddings = 4096
    tokenizer = tiny_tokenizer(16)
    target = HfTargetEngine(large, tokenizer, identity=b"t" * 32)
    program = DrafterProgram(HfDraftEngine(model, tokenizer, identity=b"d" * 32), DrafterConfig())
    prompt = [2 + (7 * at) % 13 for at in range(200)]
    with LocalDrafter(program, target) as drafter:
        run = generate(target, drafter, prompt, Sampling(seed=3, max_tokens=40), DENSE)
        kinds = [each.kind for each in run]
    assert kinds.count(Kind.ACCEPTED) >= len(kinds) / 4
    assert not run.report.misses


@pytest.mark.parametrize("chunk", [3, 512])
def test_q_follows_from_the_prefix_whatever_the_session_has_read_before(chunk: int) -> None:
    """A table of everything that is read: a session that grew has the q of one that begins there.

    Drafts are accepted, rejected and lost on the way, and the prefix is read in chunks.
    """
    limits = PeerLimits(prefill_chunk_tokens=chunk)
    config = DrafterConfig(max_depth=4, max_context=100, peer=limits, max_sessions=64, max_slots=64)

    def everything(context: tuple[int, ...]) -> Sequence[float]:
        return mixed(V, sum(at * token for at, token in enumerate(context, 1)))(context)

    engine = ToyDrafter(bounded(everything, 16), V, max_context=16)
    program = DrafterProgram(engine, config)
    peer = Peer(program)
    peer.open(1, (1, 2, 3), slot=0)
    for round_ in range(12):
        grown = proposed(program, peer, 1)
        session = peer.sessions[1]
        peer.open(2 + round_, session.tokens, slot=1 + round_)
        fresh = proposed(program, peer, 2 + round_)
        for one, other in zip(grown.rows[:1], fresh.rows[:1], strict=True):
            assert list(one.counts) == list(other.counts)
        accepted = round_ % 4
        wrong = (grown.tokens[accepted] + 1) % V
        session.commit(accepted, Outcome.CORRECTION, wrong)
    assert len(peer.sessions[1].tokens) > 16 + 8


def proposed(program: DrafterProgram[ToyContext], peer: Peer, session: int) -> Proposal:
    peer.ask(session, DENSE)
    while program.waiting:
        program.draft()
    peer.receive()
    result = peer.results[session][-1]
    assert isinstance(result, Proposal)
    return result


def test_what_the_model_reads_again_is_counted() -> None:
    engine = ToyDrafter(recent(1), V, max_context=12)
    program = DrafterProgram(engine, DrafterConfig(max_depth=4))
    peer = Peer(program)
    peer.open(1, [1] * 100)
    peer.ask(1, DENSE)
    program.draft()
    assert program.counters.fed_tokens == 8
    assert engine.extended == program.counters.fed_tokens + 3
