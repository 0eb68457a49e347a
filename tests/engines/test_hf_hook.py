"""``model.generate`` with a drafter: the same call, the same form, the same law."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, RemoteDrafter
from draftwire.errors import (
    ArithmeticRefusalError,
    ConfigurationError,
    ProtocolError,
    ProtocolErrorCode,
    RefusalCode,
)
from draftwire.kernels import cpu
from draftwire.transport.tcp import free_address
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.stop import Finish
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import END, normalised, tiny_llama, tiny_tokenizer
from tests.engines.hook_calls import (
    PROMPT,
    AfterThree,
    V,
    Written,
    local_drafter,
    run,
    served,
    target_model,
)


class EvenAfterNine(LogitsProcessor):
    """A user's own processor."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids[0, -1] == 9:
            scores[:, 1::2] = -torch.inf
        return scores


GREEDY: dict[str, dict[str, Any]] = {
    "plain": {},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 9},
    "bad_words": {"bad_words_ids": [[4], [6, 2]]},
    "forced_end": {"forced_eos_token_id": END},
    "own": {"logits_processor": LogitsProcessorList([EvenAfterNine()])},
}


@pytest.mark.parametrize("case", sorted(GREEDY))
@pytest.mark.parametrize("drafted_by", ["another", "itself"])
def test_greedy_text_is_that_of_generate_alone(case: str, drafted_by: str) -> None:
    model, options = target_model(), GREEDY[case]
    drafter = local_drafter(model, model if drafted_by == "itself" else None)
    accepted = 0
    for prompt in ([3], [2, 9, 4], PROMPT):
        reports: list[Report] = []
        expected = run(model, [prompt], do_sample=False, max_new_tokens=20, **options)
        text = run(
            model, [prompt], drafter, do_sample=False, max_new_tokens=20, reports=reports, **options
        )
        assert torch.equal(text, expected)
        accepted += reports[0].accepted
    assert accepted or drafted_by == "another"


def test_a_greedy_batch_has_the_tensor_of_generate_padding_included() -> None:
    model = target_model()
    prompts = [PROMPT, [3], [12, 5, 5, 8], [2, 9, 4]]
    options = {"do_sample": False, "max_new_tokens": 24, "repetition_penalty": 1.3}
    expected = run(model, prompts, **options)
    text = run(model, prompts, local_drafter(model), **options)
    assert text.dtype == expected.dtype
    assert torch.equal(text, expected)
    assert len({int((row == END).int().argmax()) for row in text}) > 1  # they end apart


def test_the_law_of_a_round_is_the_targets_with_real_rows_of_both_models() -> None:
    """All drafts and outcomes of one round, K = 2: the first two tokens have p's joint law.

    q: the counts that the drafter draws from; p: the scored rows with those drafts in place. A
    round that ends after one token continues with p after it. Largest measured distance: 7e-8.
    """
    vocab_size, prompt = 6, [2, 5, 3]
    tokenizer = tiny_tokenizer(vocab_size)
    target = HfTargetEngine(tiny_llama(vocab_size, seed=3), tokenizer, identity=bytes(32))
    drafter = HfDraftEngine(tiny_llama(vocab_size, layers=1, seed=8), tokenizer, identity=bytes(32))
    context = target.open(prompt, Sampling(temperature=0.8, top_k=5, max_tokens=8))
    policy = ProposalPolicy(Layout.SPARSE, 2, 1.0, support=4)

    def q_after(tokens: Sequence[int]) -> np.ndarray:
        session = drafter.open()
        return np.array(
            cpu.quantise(drafter.forward([(session, tokens)])[0].numpy(), policy).exact().dense()
        ) / (1 << 24)

    def p_after(*drafts: int) -> np.ndarray:
        return normalised(target.score(context, prompt, drafts))

    alone = np.stack([p_after(first)[1] for first in range(vocab_size)])
    expected = p_after()[0][:, None] * alone
    law = np.zeros((vocab_size, vocab_size))
    q1 = q_after(prompt)
    for first, second in itertools.product(range(vocab_size), repeat=2):
        if not q1[first]:
            continue
        q2 = q_after([*prompt, first])
        drawn = q1[first] * q2[second]
        rows = p_after(first, second)
        accept1 = min(1.0, rows[0][first] / q1[first])
        law += drawn * (1 - accept1) * _residual(rows[0], q1)[:, None] * alone
        if not q2[second]:
            continue
        accept2 = min(1.0, rows[1][second] / q2[second])
        law[first] += drawn * accept1 * (1 - accept2) * _residual(rows[1], q2)
        law[first, second] += drawn * accept1 * accept2
    np.testing.assert_allclose(law, expected, atol=1e-6, rtol=0)
    assert law.sum() == pytest.approx(1, abs=1e-6)


def _residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    left = np.maximum(p - q, 0)
    return left / left.sum() if left.any() else left


def test_a_seed_repeats_the_text_and_another_does_not() -> None:
    model = target_model()
    options = {"do_sample": True, "max_new_tokens": 16, "eos_token_id": None}
    texts = [
        run(model, [PROMPT], local_drafter(model), seed=seed, **options)[0].tolist()
        for seed in (7, 7, 8, (1 << 128) - 1)
    ]
    assert texts[0] == texts[1]
    assert len(set(map(tuple, texts))) == 3
    with pytest.raises(ConfigurationError, match="seed"):
        run(model, [PROMPT], local_drafter(model), seed=1 << 128, **options)
    for odd in (1.5, "ab", [0.5], [1, 2]):
        with pytest.raises(ConfigurationError, match="seed"):
            run(model, [PROMPT], local_drafter(model), seed=odd, **options)
    for same in (np.int64(7), torch.tensor(7)):
        again = run(model, [PROMPT], local_drafter(model), seed=same, **options)[0].tolist()
        assert again == texts[0]


def test_r13_rows_of_a_batch_are_the_requests_that_they_would_be_alone() -> None:
    model = target_model()
    prompts = [PROMPT, [4], [2, 9, 4]]
    options = {"do_sample": True, "max_new_tokens": 12, "top_k": 0, "repetition_penalty": 1.2}
    drafter = local_drafter(model)
    batch = run(model, prompts, drafter, seed=[1, None, 2], **options)
    for row, seed in ((0, 1), (2, 2)):
        solo = run(model, [prompts[row]], local_drafter(model), seed=seed, **options)[0]
        text = solo[len(prompts[row]) :].tolist()
        assert batch[row, len(PROMPT) :].tolist()[: len(text)] == text
    with pytest.raises(ConfigurationError, match="2 seeds for 3 rows"):
        run(model, prompts, drafter, seed=[1, 2], **options)


def test_r14_identical_requests_without_a_seed_are_independent() -> None:
    model = target_model()
    options = {"do_sample": True, "max_new_tokens": 10, "eos_token_id": None, "temperature": 2.0}
    drafter = local_drafter(model)
    torch.manual_seed(0)
    texts = {tuple(run(model, [PROMPT], drafter, **options)[0].tolist()) for _ in range(6)}
    assert len(texts) == 6  # equal ones would have a chance far below 2^-24
    rows = run(model, [PROMPT], drafter, seed=3, num_return_sequences=4, **options)
    assert len({tuple(row.tolist()) for row in rows}) == 4


def test_torchs_own_generator_is_not_advanced() -> None:
    model = target_model()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(model, [PROMPT], local_drafter(model), do_sample=True, max_new_tokens=6)
    assert torch.equal(torch.rand(3), expected)


def test_a_dictionary_is_returned_when_it_is_asked_for() -> None:
    model = target_model()
    options = {"do_sample": False, "max_new_tokens": 6}
    output = run(model, [PROMPT], local_drafter(model), return_dict_in_generate=True, **options)
    assert torch.equal(output.sequences, run(model, [PROMPT], **options))


def test_l31_nothing_is_kept_after_an_end_token_inside_a_proposal() -> None:
    model = target_model()
    text = run(model, [PROMPT], do_sample=False, max_new_tokens=12)[0, len(PROMPT) :].tolist()
    ends = text[2]  # the third token of a round of five whose drafts are all right
    at = text.index(ends)
    reports: list[Report] = []
    ended = run(
        model,
        [PROMPT],
        local_drafter(model, model),
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=ends,
        reports=reports,
    )
    assert ended[0, len(PROMPT) :].tolist() == text[: at + 1]
    report = reports[0]
    assert (report.tokens, report.accepted, report.rounds) == (at + 1, at + 1, 1)
    assert report.after_end == 5 - (at + 1)
    assert report.finish is Finish.RULE


def test_the_callers_criteria_see_every_kept_token_once_and_in_order() -> None:
    model = target_model()
    criterion = AfterThree()
    text = run(
        model,
        [PROMPT],
        local_drafter(model, model),
        do_sample=False,
        max_new_tokens=20,
        eos_token_id=None,
        stopping_criteria=StoppingCriteriaList([criterion]),
    )[0].tolist()
    assert len(text) == len(PROMPT) + 3
    assert criterion.seen == [text[: len(PROMPT) + count] for count in (1, 2, 3)]


def test_the_streamer_of_the_call_gets_prompt_tokens_and_end() -> None:
    model, written = target_model(), Written()
    text = run(
        model,
        [PROMPT],
        local_drafter(model),
        do_sample=True,
        seed=4,
        max_new_tokens=9,
        streamer=written,
    )
    assert written.ids == text[0].tolist()
    assert written.ended == 1


def test_a_drafter_that_is_away_leaves_the_target_alone_and_says_so() -> None:
    model = target_model()
    drafter = RemoteDrafter.for_model(free_address(), model, tiny_tokenizer(V))
    reports: list[Report] = []
    options = {"do_sample": False, "max_new_tokens": 8}
    text = run(model, [PROMPT], drafter, reports=reports, **options)
    assert torch.equal(text, run(model, [PROMPT], **options))
    assert reports[0].drafted == 0
    assert any("away" in note for note in reports[0].notes)


def test_over_tcp_the_same_text_as_in_one_process() -> None:
    model, tokenizer = target_model(), tiny_tokenizer(V)
    engine = HfDraftEngine(tiny_llama(V, layers=1, seed=4), tokenizer, identity=b"d" * 32)
    options = {"do_sample": True, "temperature": 0.8, "max_new_tokens": 40, "seed": 11}
    options |= {"eos_token_id": None}
    with served(engine) as address:
        drafter = RemoteDrafter.for_model(str(address), model, tokenizer, deadline=30.0)
        reports: list[Report] = []
        with drafter:
            drafter.connect()
            remote = run(model, [PROMPT], drafter, reports=reports, **options)
    assert reports[0].drafted > 0
    assert not reports[0].misses
    assert torch.equal(remote, run(model, [PROMPT], local_drafter(model), **options))


def test_x43_another_tokenizer_is_refused_by_name_before_the_first_round() -> None:
    model = target_model()
    other = HfDraftEngine(tiny_llama(V, layers=1), tiny_tokenizer(V, rename=5))
    with served(other) as address:
        drafter = RemoteDrafter.for_model(str(address), model, tiny_tokenizer(V))
        with drafter, pytest.raises(ProtocolError) as caught:
            drafter.connect()
    assert caught.value.code is ProtocolErrorCode.HELLO_REFUSED
    assert caught.value.field == "tokenizer_hash"


class Poison(LogitsProcessor):
    """NaN after token 9."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        poisoned = torch.full_like(scores, torch.nan)
        return poisoned if input_ids[0, -1] == 9 else scores


def test_e49_a_row_of_nan_is_an_error_of_that_request_alone() -> None:
    model = target_model()
    drafter = local_drafter(model)
    options = {"do_sample": True, "max_new_tokens": 12, "seed": 2}
    before = run(model, [PROMPT], drafter, **options)
    with pytest.raises(ArithmeticRefusalError) as caught:
        run(
            model,
            [[3, 9]],
            drafter,
            logits_processor=LogitsProcessorList([Poison()]),
            **options,
        )
    assert caught.value.code is RefusalCode.NON_FINITE
    assert torch.equal(run(model, [PROMPT], drafter, **options), before)


def test_v18_a_padded_target_keeps_its_law_and_a_padded_id_ends_the_drafting_alone() -> None:
    target, drafter = tiny_llama(18), tiny_llama(16, layers=1, seed=4)
    beyond = 0
    for seed in range(8):
        reports: list[Report] = []
        text = run(
            target,
            [PROMPT],
            local_drafter(target, drafter, vocab_size=13),
            do_sample=True,
            top_k=0,
            max_new_tokens=12,
            eos_token_id=None,
            pad_token_id=0,
            seed=seed,
            reports=reports,
        )
        assert text.shape[1] == len(PROMPT) + 12
        assert reports[0].drafted > 0
        beyond += bool((text >= 13).any())
    assert beyond > 0


def test_g25_one_legal_token_is_the_whole_text() -> None:
    model = target_model()
    text = run(
        model,
        [PROMPT],
        local_drafter(model),
        do_sample=True,
        max_new_tokens=9,
        prefix_allowed_tokens_fn=lambda batch, ids: [11],
    )
    assert text[0, len(PROMPT) :].tolist() == [11] * 9


def test_g21_each_row_of_a_batch_keeps_its_own_mask() -> None:
    model = target_model()
    text = run(
        model,
        [PROMPT, [4]],
        local_drafter(model),
        do_sample=True,
        max_new_tokens=12,
        prefix_allowed_tokens_fn=lambda batch, ids: [2, 3, 4] if batch == 0 else [5, 6, 7],
    )[:, len(PROMPT) :]
    assert set(text[0].tolist()) <= {2, 3, 4}
    assert set(text[1].tolist()) <= {5, 6, 7}
