"""The drafter engine: rows of logits that depend on their own tokens alone, and V of them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from draftwire.drafter.engine import DraftEngine
from draftwire.drafter.propose import DraftJob, propose
from draftwire.engines.hf import HfDraftEngine
from draftwire.exact.words import Address, Domain, ProposalWords
from draftwire.kernels import cpu
from draftwire.session.proposal import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Adaptation, Layout, Status
from testing.harness.tiny_models import fresh_logits, tiny_llama, tiny_tokenizer

V = 16
DENSE = ProposalPolicy(Layout.DENSE, depth=4, temperature=0.7)


def engine_for(width: int = V, vocab_size: int = V) -> HfDraftEngine:
    return HfDraftEngine(tiny_llama(width), tiny_tokenizer(vocab_size), identity=bytes(32))


def job(context: object, feed: list[int], key: int, first_position: int) -> DraftJob:
    return DraftJob(context, feed, DENSE, key, 1, 1, first_position)


def test_it_is_a_draft_engine() -> None:
    engine: DraftEngine = engine_for()
    assert engine.adaptation is Adaptation.NATIVE
    assert (engine.vocab_size, engine.max_context) == (V, 128)


def test_logits_are_those_of_the_last_token() -> None:
    engine = engine_for()
    first, second = engine.open(), engine.open()
    rows = engine.forward([(first, [3, 4, 5]), (second, [6])])
    assert rows.dtype == torch.float32
    assert rows.shape == (2, V)
    # Largest measured distance from a pass without a cache, here and below: 4e-6.
    np.testing.assert_allclose(rows[0], fresh_logits(tiny_llama(V), [3, 4, 5])[-1], atol=5e-5)
    np.testing.assert_allclose(rows[1], fresh_logits(tiny_llama(V), [6])[-1], atol=5e-5)


def test_a_row_has_the_same_bits_whatever_else_is_in_the_batch() -> None:
    feeds = [[3, 4, 5], [6], [7, 8], [2, 2, 2, 9]]

    def run(order: list[int]) -> dict[int, bytes]:
        engine = engine_for()
        contexts = {index: engine.open() for index in order}
        rows = engine.forward([(contexts[index], feeds[index]) for index in order])
        more = engine.forward([(contexts[index], [index]) for index in order])
        return {
            index: rows[at].numpy().tobytes() + more[at].numpy().tobytes()
            for at, index in enumerate(order)
        }

    together = run([0, 1, 2, 3])
    assert run([3, 1, 0, 2]) == together
    for index in range(4):
        assert run([index]) == {index: together[index]}


def test_d9_a_truncated_context_continues_from_the_committed_prefix() -> None:
    engine = engine_for()
    prompt, drafts = [3, 7, 2], [5, 6, 8, 9]
    for accepted in range(len(drafts) + 1):
        context = engine.open()
        engine.forward([(context, prompt)])
        for draft in drafts[:-1]:  # the last draft of a proposal is not fed
            engine.forward([(context, [draft])])
        held = min(len(prompt) + accepted, context.length)
        engine.truncate(context, held)
        committed = [*prompt, *drafts[:accepted], 11]
        row = engine.forward([(context, committed[held:])])[0]
        assert context.tokens == tuple(committed)
        np.testing.assert_allclose(row, fresh_logits(tiny_llama(V), committed)[-1], atol=5e-5)


def test_closed_contexts_are_forgotten() -> None:
    engine = engine_for()
    contexts = [engine.open() for _ in range(3)]
    engine.forward([(context, [1, 2]) for context in contexts])
    for left, context in zip((2, 1, 0), contexts, strict=True):
        engine.close(context)
        assert engine.open_sessions == left
        assert context.length == 0


def test_m55_each_q_is_conditioned_on_the_tokens_drawn_before_it() -> None:
    engine = engine_for()
    seen = set()
    for key in range(12):
        draft = propose(engine, [job(engine.open(), [3, 7], key, 2)])[0]
        assert isinstance(draft, Draft)
        # The same chunks, so the same bits: the counts must be equal.
        again, feed = engine.open(), [3, 7]
        for token, row in zip(draft.tokens, draft.rows, strict=True):
            counts = cpu.quantise(engine.forward([(again, feed)])[0].numpy(), DENSE)
            assert np.array_equal(counts.counts, row.counts)
            feed = [token]
        seen.add(tuple(draft.tokens))
    assert len(seen) > 6


def test_d2_bfloat16_logits_are_widened_once_and_the_token_drawn_from_those_counts() -> None:
    model = copy.deepcopy(tiny_llama(V)).to(torch.bfloat16)
    engine = HfDraftEngine(model, tiny_tokenizer(V), identity=bytes(32))
    draft = propose(engine, [job(engine.open(), [3, 7], 99, 2)])[0]
    assert isinstance(draft, Draft)
    again, feed = engine.open(), [3, 7]
    for at, (token, row) in enumerate(zip(draft.tokens, draft.rows, strict=True)):
        logits = engine.forward([(again, feed)])[0]
        assert torch.equal(logits, logits.to(torch.bfloat16).float())  # near ties stay ties
        counts = cpu.quantise(logits.numpy(), DENSE)
        assert np.array_equal(counts.counts, row.counts)
        word = next(iter(ProposalWords(99).words(Address(1, 1, 2 + at, Domain.PROPOSAL))))
        assert cpu.draw(row, word) == token
        feed = [token]


def test_v18_padded_ids_have_no_q_and_are_never_proposed() -> None:
    engine = engine_for(width=18, vocab_size=13)
    rows = engine.forward([(engine.open(), [3, 7])])
    assert rows.shape == (1, 13)
    for key in range(20):
        draft = propose(engine, [job(engine.open(), [3, 7], key, 2)])[0]
        assert isinstance(draft, Draft)
        assert all(token < 13 for token in draft.tokens)
        assert all(row.vocab_size == 13 for row in draft.rows)


def test_e49_a_row_of_nan_refuses_its_own_session_alone() -> None:
    model = copy.deepcopy(tiny_llama(V))
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = torch.nan
    engine = HfDraftEngine(model, tiny_tokenizer(V), identity=bytes(32))
    assert engine.batches
    drafts = propose(
        engine,
        [job(engine.open(), feed, 5, len(feed)) for feed in ([3, 7], [3, 9], [7])],
    )
    alone = propose(engine, [job(engine.open(), [7], 5, 1)])
    assert drafts[1] is Status.REFUSED_ARITHMETIC
    assert isinstance(drafts[2], Draft)
    assert isinstance(alone[0], Draft)
    assert drafts[2].tokens == alone[0].tokens


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_context_of_any_length_can_be_emptied_and_used_again(length: int) -> None:
    engine = engine_for()
    context = engine.open()
    first = engine.forward([(context, [3] * length)])
    engine.truncate(context, 0)
    assert context.length == 0
    assert torch.equal(engine.forward([(context, [3] * length)]), first)
