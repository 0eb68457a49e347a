"""What a call of the verification takes and gives, whatever the device."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftwire.errors import RefusalCode
from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels.cpu.verify_loops import target_weights
from draftwire.kernels.protocol import OK, UNDECIDED, Round, Verdict
from draftwire.kernels.rows import QRow
from draftwire.verifier.judge import judge
from draftwire.wire.registry import TOTAL
from tests.kernels.test_rounds import FewWords, every, exactly, one, point, rounds_of

from .batches import policy
from .interpreted import CPU, EVERY, NAMES


@pytest.mark.parametrize("kernels", EVERY[1:], ids=NAMES[1:])
def test_bytes_to_the_host_are_few_numbers_a_row(kernels):
    scores, rounds = rounds_of(32, 300, 9, depths=(5,))
    before = kernels.transfer.bytes_to_host
    kernels.verify(torch.from_numpy(scores), rounds)
    assert kernels.transfer.bytes_to_host - before <= 32 * len(scores) + 8 * len(rounds)


@every
def test_a_call_without_rounds_has_no_verdicts(kernels):
    for rows in (0, 2):
        assert kernels.verify(torch.zeros(rows, 5), []) == []


@every
def test_scores_that_record_gradients_or_lie_by_column_are_judged_and_quantised(kernels):
    scores, rounds = rounds_of(9, 33, 10)
    by_column = np.asfortranarray(scores)
    same = [torch.from_numpy(scores).requires_grad_(), torch.from_numpy(by_column), by_column]
    plain = torch.from_numpy(scores)
    counts = [row.exact() for row in kernels.host_rows(kernels.quantise(plain, policy())[0])]
    verdicts = kernels.verify(plain, rounds)
    for given in same:
        q, status = kernels.quantise(given, policy())
        assert not np.asarray(status).any()
        assert [row.exact() for row in kernels.host_rows(q)] == counts
        assert kernels.verify(given, rounds) == verdicts


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2)])
def test_what_is_no_batch_of_rows_is_refused(shape):
    for kernels in EVERY:
        with pytest.raises(Exception, match=r"logits must be|scores are"):
            kernels.verify(torch.zeros(shape), [])


def test_weights_of_p_are_judged_on_the_host():
    """binary64 rows are p as an engine made it, not logits."""
    scores, rounds = rounds_of(50, 7, 2)
    rounds = [replace(each, greedy=False) for each in rounds]
    weights = np.empty(scores.shape)
    for row, out in zip(scores, weights, strict=True):
        target_weights(row, out)
    expected = [exactly(scores, each) for each in rounds]
    for kernels in EVERY:
        assert kernels.verify(torch.from_numpy(weights), rounds) == expected


def one_draft(kernels, masses, counts, token, first):
    """The verdict and the exact judgement of one draft, with U the same in every domain."""
    row = np.array([np.log(each) if each else -np.inf for each in masses], np.float32)
    scores = np.stack([row, row])
    words = [first >> 24, first & 0xFFFFFF, *[0] * 9]
    source = FewWords(ACCEPTANCE=words, CORRECTION=words, BONUS=words)
    this = one(scores, [token], [QRow(len(counts), None, np.array(counts, np.int32))], source)
    (found,) = kernels.verify(torch.from_numpy(scores), [this])
    (judgement,) = judge(CPU, scores, [this])
    if found.status == OK:
        assert (found.accepted, found.token) == (judgement.accepted, judgement.tokens[-1])
    return found, judgement


@every
def test_a_choice_within_its_bound_is_left_to_exact_integers(kernels):
    """p = 1/2, q = 3/4: the threshold 2/3 lies strictly inside one step of 48 bits."""
    edge = 2 * (1 << 48) // 3
    three = TOTAL * 3 // 4
    for first, accepted in ((edge - 1000, 1), (edge, 1), (edge + 1, 0), (edge + 1000, 0)):
        found, judgement = one_draft(kernels, [1, 1], [three, TOTAL - three], 0, first)
        assert judgement.accepted == accepted  # the third word is 0, below the rest of 2/3
        if first == edge:
            assert found == Verdict(0, None, UNDECIDED)


@every
def test_e49_faults_of_one_request_are_its_own(kernels):
    """NaN in a row that is judged; NaN behind a rejection is not looked at; a token without q."""
    scores = np.zeros((24, 5), np.float32)
    rows = [point(5, 4)] * 2
    rounds = [
        Round([4, 4], rows, 3 * index, 3, KeyedWords(RequestKey(11_000 + index)), 3, index, 40)
        for index in range(8)
    ]
    clean = kernels.verify(torch.from_numpy(scores), rounds)
    assert not any(verdict.status for verdict in clean)
    stands = next(index for index, verdict in enumerate(clean) if verdict.accepted)
    falls = next(index for index, verdict in enumerate(clean) if not verdict.accepted)
    scores[3 * stands + 1, 2] = np.nan
    scores[3 * falls + 1 : 3 * falls + 3, 2] = np.nan
    others = [index for index in range(8) if index not in (stands, falls)]
    massless, without, outside, elsewhere = others[:4]
    scores[3 * massless] = -np.inf
    rounds[without] = replace(rounds[without], tokens=[4, 0])
    rounds[outside] = replace(rounds[outside], tokens=[5, 4])
    rounds[elsewhere] = replace(rounds[elsewhere], first_row=22)
    expected = list(clean)
    expected[stands] = Verdict(1, None, RefusalCode.NON_FINITE)
    expected[massless] = Verdict(0, None, RefusalCode.ZERO_MASS)
    expected[without] = Verdict(0, None, RefusalCode.ZERO_Q)
    expected[outside] = expected[elsewhere] = Verdict(0, None, RefusalCode.OUT_OF_RANGE)
    assert kernels.verify(torch.from_numpy(scores), rounds) == expected
