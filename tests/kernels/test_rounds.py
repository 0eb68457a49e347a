"""Rounds of many requests in one call, judged on tensors as the exact layer does (A17-A24)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from draftwire.errors import RefusalCode
from draftwire.exact import quantise as exact_quantise
from draftwire.exact import verify as exact
from draftwire.exact.words import Address, Domain, KeyedWords, RequestKey
from draftwire.kernels import cpu
from draftwire.kernels.cpu.verify_loops import target_weights
from draftwire.kernels.protocol import OK, UNDECIDED, Round, Verdict
from draftwire.kernels.rows import QRow
from draftwire.kernels.torch import device_rows, sampling
from draftwire.kernels.torch.kernels import TORCH
from draftwire.verifier.judge import judge
from draftwire.wire.registry import TOTAL

from .batches import POLICIES, policy
from .interpreted import DEVICE, EVERY, NAMES

every = pytest.mark.parametrize("kernels", EVERY, ids=NAMES)


def rounds_of(batch, size, seed, given=None, depths=(0, 1, 2, 3), away=0.5):
    """Scores (R, V) and rounds of other depths, some without a row behind the last draft."""
    rng = np.random.default_rng(seed)
    scores, rounds, first = [], [], 0
    for index in range(batch):
        depth = depths[int(rng.integers(len(depths)))]
        rows = depth + (depth == 0 or bool(rng.integers(4)))
        logits = (rng.standard_normal((depth + 1, size)) * 2).astype(np.float32)
        draft = (logits + rng.standard_normal(logits.shape) * away).astype(np.float32)
        if index % 9 == 0:
            logits[0, : size // 2] = -np.inf  # tokens that the target forbids
        if index % 11 == 0:
            logits[-1, 1:] = -np.inf  # one legal id
        q = [cpu.quantise(draft[at], given or policy()) for at in range(depth)]
        tokens = [cpu.draw(row, int(rng.integers(TOTAL))) for row in q]
        source = KeyedWords(RequestKey(seed, index))
        greedy = index % 5 == 4
        rounds.append(Round(tokens, q, first, rows, source, 3, index, 40, greedy))
        scores.append(logits[:rows])
        first += rows
    return np.concatenate(scores), rounds


def integers_of(scores):
    weights = np.empty(scores.shape)
    target_weights(scores, weights)
    return exact_quantise.integers(weights.tolist())


def refusal_of(row, greedy):
    largest = row.max()
    if np.isnan(largest) or (largest == np.inf and not greedy):
        return RefusalCode.NON_FINITE
    return RefusalCode.ZERO_MASS if largest == -np.inf else OK


def exactly(scores, each):
    """The exact layer's verdict, row after row."""
    words = each.words

    def at(index, domain):
        return words.words(
            Address(each.generation, each.round, each.first_position + index, domain)
        )

    for index, (token, q) in enumerate(zip(each.tokens, each.rows, strict=True)):
        row = scores[each.first_row + index]
        if refusal_of(row, each.greedy):
            return Verdict(index, None, refusal_of(row, each.greedy))
        if each.greedy:
            if int(row.argmax()) != token:
                return Verdict(index, int(row.argmax()))
            continue
        weights = integers_of(row)
        if not exact.accept(weights, q.exact(), token, at(index, Domain.ACCEPTANCE)):
            drawn = exact.correction(weights, q.exact(), at(index, Domain.CORRECTION))
            return Verdict(index, drawn)
    depth = len(each.tokens)
    if each.row_count == depth:
        return Verdict(depth, None)
    row = scores[each.first_row + depth]
    if refusal_of(row, each.greedy):
        return Verdict(depth, None, refusal_of(row, each.greedy))
    if each.greedy:
        return Verdict(depth, int(row.argmax()))
    domain = Domain.BONUS if depth else Domain.TARGET_ONLY
    return Verdict(depth, exact.target(integers_of(row), at(depth, domain)))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 45])
@pytest.mark.parametrize("given", [policy(), policy(support=1), policy(top_p=TOTAL // 2)])
def test_verdicts_are_the_exact_ones(size, given):
    """18 combinations of 100 ragged rounds, sampled and greedy, on each device class."""
    scores, rounds = rounds_of(100, size, size, given)
    expected = [exactly(scores, each) for each in rounds]
    for kernels in EVERY:
        assert kernels.verify(torch.from_numpy(scores), rounds) == expected
        assert kernels.verify(scores, rounds) == expected  # arrays of the host are taken as well


@pytest.mark.parametrize(("index", "size"), list(enumerate([2, 5, 11, 30])))
def test_6000_rounds_are_equal_on_torch_and_triton(index, size):
    given = (policy(), policy(support=1), POLICIES[9], policy(2.0**14))[index]
    scores, rounds = rounds_of(1500, size, index + 50, given)
    expected = [exactly(scores, each) for each in rounds]
    for kernels in EVERY:
        assert kernels.verify(torch.from_numpy(scores), rounds) == expected


@pytest.mark.parametrize("kernels", EVERY[:3], ids=NAMES[:3])
def test_a_round_at_a_real_vocabulary_is_the_exact_one(kernels):
    scores, rounds = rounds_of(3, 129_280, 5, policy(support=32), depths=(2,))
    assert kernels.verify(torch.from_numpy(scores), rounds) == [
        exactly(scores, each) for each in rounds
    ]


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@every
def test_narrower_scores_widen_exactly(kernels, narrow):
    scores, rounds = rounds_of(200, 45, 4)
    half = torch.from_numpy(scores).to(narrow)
    wide = half.to(torch.float32).numpy()
    assert kernels.verify(half, rounds) == [exactly(wide, each) for each in rounds]


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@every
def test_narrower_logits_are_quantised_as_they_widen(kernels, narrow):
    logits = np.random.default_rng(6).standard_normal((5, 45)).astype(np.float32) * np.float32(3)
    half = torch.from_numpy(logits).to(narrow)
    wide = half.to(torch.float32).numpy()
    uniform24 = np.array([0, 1, TOTAL // 2, TOTAL - 2, TOTAL - 1])
    for given in POLICIES:
        q, status = kernels.quantise(half, given)
        expected = [cpu.quantise(row, given) for row in wide]
        assert not np.asarray(status).any()
        assert [row.exact() for row in kernels.host_rows(q)] == [row.exact() for row in expected]
        drawn = [cpu.draw(row, int(word)) for row, word in zip(expected, uniform24, strict=True)]
        assert kernels.draw(q, uniform24).tolist() == drawn


@every
def test_rows_that_are_refused_keep_what_was_accepted_before_them(kernels):
    """NaN, +infinity and -infinity alone in each row of a round, and one request beside it."""
    scores, rounds = rounds_of(40, 9, 8, depths=(2,))
    scores[:] = 0.0
    rounds = [
        replace(each, tokens=[1, 2], rows=[point(9, 1, 2), point(9, 2, 3)], greedy=index % 2 == 1)
        for index, each in enumerate(rounds)
    ]
    for index, value in enumerate((np.nan, -np.nan, np.inf, -np.inf) * 3):
        row = rounds[index].first_row + index // 4 % rounds[index].row_count
        scores[row, 3 if value != -np.inf else slice(None)] = value
    expected = [exactly(scores, each) for each in rounds]
    assert {verdict.status for verdict in expected} > {OK, RefusalCode.ZERO_MASS}
    assert kernels.verify(torch.from_numpy(scores), rounds) == expected


def point(size, *ids):
    """q that is the same on some ids."""
    counts = np.zeros(size, np.int32)
    counts[list(ids)] = TOTAL // len(ids)
    return QRow(size, None, counts)


@every
def test_a_proposal_that_is_none_is_refused_before_any_row_is_looked_at(kernels):
    scores = np.full((3, 6), np.nan, np.float32)
    source = KeyedWords(RequestKey(1))
    whole = Round([1, 2], [point(6, 1, 3), point(6, 1, 3)], 0, 3, source, 1, 1, 0)
    faults = {
        RefusalCode.ZERO_Q: [whole, replace(whole, greedy=True), replace(whole, tokens=[2, 9])],
        RefusalCode.OUT_OF_RANGE: [
            replace(whole, tokens=[1, 6]),
            replace(whole, tokens=[-1, 2]),
            replace(whole, tokens=[1]),
            replace(whole, row_count=1),
            replace(whole, row_count=4),
            replace(whole, first_row=1),
            replace(whole, first_row=-1),
            replace(whole, tokens=[], rows=[], row_count=0),
            replace(whole, rows=[point(6, 1), point(7, 2)]),
        ],
    }
    for code, rounds in faults.items():
        for each in rounds:
            assert kernels.verify(torch.from_numpy(scores), [each]) == [Verdict(0, None, code)]


@every
def test_a_q_of_fewer_ids_is_zero_on_the_others(kernels):
    """The rows of p are wider than the vocabulary: V18."""
    scores, rounds = rounds_of(300, 12, 3)
    narrow, wide = [], []
    for each in rounds:
        tokens = [token % 8 for token in each.tokens]
        short = [point(8, token, (token + 3) % 8) for token in tokens]
        if each.round % 2:
            short = [
                QRow(8, np.flatnonzero(q.counts).astype(np.int32), q.counts[q.counts > 0])
                for q in short
            ]
        narrow.append(replace(each, tokens=tokens, rows=short))
        wide.append(replace(each, tokens=tokens, rows=[point(12, t, (t + 3) % 8) for t in tokens]))
    expected = [exactly(scores, each) for each in wide]
    assert any(verdict.token is not None and verdict.token >= 8 for verdict in expected)
    assert kernels.verify(torch.from_numpy(scores), narrow) == expected


class FewWords:
    """The words of each address, given; asking for more of them is an error."""

    def __init__(self, **of_domain):
        self.of_domain = {Domain[name]: given for name, given in of_domain.items()}
        self.asked = []

    def words(self, address):
        self.asked.append((address.domain, address.position))
        return iter(self.of_domain[address.domain])


def one(scores, tokens, rows, source, **more):
    return Round(tokens, rows, 0, len(scores), source, 1, 1, 0, **more)


@every
def test_a_decision_on_its_edge_is_left_to_exact_integers(kernels):
    """U within 2^-47 of every edge of A18 to A20: undecided or right, never wrong."""
    logits = np.array([[0.5, 0.25, 0.25, 1.0]] * 2, np.float32)
    q = point(4, 0, 1)
    weights = integers_of(logits[0])
    mass = sum(weights)
    edge = weights[0] * TOTAL * 2**48 // (TOTAL // 2 * mass)
    undecided = 0
    for away in (-(2**40), -(2**20), -2, -1, 0, 1, 2, 2**20, 2**40):
        u = edge + away
        given = [u >> 24, u & 0xFFFFFF]
        source = FewWords(ACCEPTANCE=given, CORRECTION=[1, 2], BONUS=[1 << 20, 2])
        (found,) = kernels.verify(torch.from_numpy(logits), [one(logits, [0], [q], source)])
        if found.status == UNDECIDED:
            undecided += 1
            assert found == Verdict(0, None, UNDECIDED) and abs(away) < 2**20
        else:
            assert found.accepted == (u < edge)
    assert undecided >= 1


@every
def test_a_draw_on_an_edge_is_left_to_exact_integers(kernels):
    logits = np.array([[0.5, 0.25, 0.25, 1.0]], np.float32)
    weights = integers_of(logits[0])
    edges = [0, weights[0], weights[0] + weights[1]]
    for place, edge in enumerate(edges):
        for away in (-(2**40), -1, 0, 1, 2**40):
            u = edge * 2**48 // sum(weights) + away
            if u < 0:
                continue
            source = FewWords(TARGET_ONLY=[u >> 24, u & 0xFFFFFF])
            (found,) = kernels.verify(torch.from_numpy(logits), [one(logits, [], [], source)])
            if found.status == UNDECIDED:
                assert abs(away) < 2 and place
            else:
                assert found == Verdict(0, place if away >= 0 else place - 1)


@every
def test_no_residual_mass_is_never_a_token(kernels):
    """q = p to the last bit, and a word that rejects: left to exact integers, which say why."""
    logits = np.zeros((2, 4), np.float32)
    source = FewWords(ACCEPTANCE=[0xFFFFFF, 0xFFFFFF], CORRECTION=[5, 5], BONUS=[5, 5])
    q = point(4, 0, 1, 2, 3)
    (found,) = kernels.verify(torch.from_numpy(logits), [one(logits, [1], [q], source)])
    assert found in (Verdict(1, 0), Verdict(0, None, UNDECIDED))


def committed(kernels, masses, counts, token, first):
    """Accepted drafts and tokens of one draft of q, U the same in every domain, as judged."""
    row = [math.log(each) if each else -math.inf for each in masses]
    scores = np.array([row, row], np.float32)
    dense = np.array(counts, np.int32)
    ids = np.flatnonzero(dense).astype(np.int32)
    given = [first >> 24, first & 0xFFFFFF, 0, 0]
    found = set()
    for q in (QRow(len(counts), None, dense), QRow(len(counts), ids, dense[ids])):
        source = FewWords(ACCEPTANCE=given, CORRECTION=given, BONUS=given)
        this = one(scores, [token], [q], source)
        (judgement,) = judge(kernels, torch.from_numpy(scores), [this])
        found.add((judgement.accepted, judgement.tokens))
    (only,) = found
    return only


EDGES_OF_U = (0, 1, 12345, 1 << 47, (1 << 48) - 1)


@every
@pytest.mark.parametrize("first", EDGES_OF_U)
def test_d5_an_impossible_token_is_rejected_at_word_0_and_never_drawn(kernels, first):
    """p - q: 0, 0, -1/4, 1/2."""
    assert committed(kernels, [0, 1, 0, 3], [TOTAL // 4] * 4, 0, first) == (0, (3,))


@every
@pytest.mark.parametrize("first", EDGES_OF_U)
def test_g25_one_legal_id_is_always_the_token(kernels, first):
    counts = [TOTAL // 2, TOTAL // 4, TOTAL // 4]
    assert committed(kernels, [0, 1, 0], counts, 0, first) == (0, (1,))
    assert committed(kernels, [0, 1, 0], counts, 1, first) == (1, (1, 1))


@every
def test_the_residual_is_over_the_full_vocabulary_not_the_support_of_q(kernels):
    """q on two of four ids: p - q lives on the two others alone."""
    scores = np.zeros((2, 4), np.float32)
    for first, token in ((TOTAL // 4, 2), (TOTAL * 3 // 4, 3)):
        source = FewWords(ACCEPTANCE=[TOTAL - 1, 0], CORRECTION=[first, 0])
        this = one(scores, [0], [point(4, 0, 1)], source)
        assert kernels.verify(torch.from_numpy(scores), [this]) == [Verdict(0, token)]


def test_a_bound_of_nothing_is_seen(monkeypatch):
    """The mutant of the edges above: without its bound a kernel guesses, and says nothing."""
    scores = torch.zeros(2, 2)
    counts = np.array([TOTAL * 3 // 4, TOTAL // 4], np.int32)
    close = [2 * (1 << 48) // 3 + step for step in (-1, 0, 1)]

    def undecided():
        found = []
        for first in close:
            given = [first >> 24, first & 0xFFFFFF]
            source = FewWords(ACCEPTANCE=given, CORRECTION=[1 << 20, 0], BONUS=[1 << 20, 0])
            this = one(scores, [0], [QRow(2, None, counts)], source)
            found += DEVICE.verify(scores, [this])
        return [verdict.status for verdict in found].count(UNDECIDED)

    assert undecided() == 3
    monkeypatch.setattr(device_rows, "bound_of", lambda size: 0.0)
    assert undecided() < 2


def test_what_torch_does_on_a_device_never_waits_for_the_host():
    """Tensors without values: an .item(), or a shape that depends on a value, would raise."""

    def zeros(*shape, dtype=torch.int64):
        return torch.zeros(*shape, dtype=dtype, device="meta")

    scores = zeros(12, 50, dtype=torch.float32)
    for given in (policy(), policy(support=5), POLICIES[9], policy(0.0)):
        q, status = TORCH.quantise(scores, given)
        assert status.shape == TORCH.draw(q, zeros(12)).shape == (12,)
    assert TORCH.measure(scores, zeros(12)).shape == (12, 3)
    assert sampling.lowest(scores).shape == (12,)
    for q in (None, zeros(4, 50, dtype=torch.int32)):
        assert TORCH.sample(scores, zeros(4), q, zeros(4)).shape == (4,)


@every
def test_a_word_is_read_only_for_a_decision_that_is_taken(kernels):
    logits = np.array([[9.0, 0.0, -np.inf, 0.0]] * 3, np.float32)
    source = FewWords(ACCEPTANCE=[1, 1], CORRECTION=[5, 5], BONUS=[5, 5], TARGET_ONLY=[5, 5])
    scores = torch.from_numpy(logits)
    kernels.verify(scores, [one(logits, [0, 0], [point(4, 0, 1)] * 2, source)])
    assert source.asked == [(Domain.BONUS, 2)]  # p >= q twice
    source.asked.clear()
    kernels.verify(scores, [one(logits, [2, 0], [point(4, 2), point(4, 0)], source)])
    assert source.asked == [(Domain.CORRECTION, 0)]  # p(x) = 0
    source.asked.clear()
    kernels.verify(scores, [one(logits[:1], [], [], source)])
    assert source.asked == [(Domain.TARGET_ONLY, 0)]
    source.asked.clear()
    kernels.verify(scores, [replace(one(logits, [0], [point(4, 0, 1)], source), row_count=1)])
    kernels.verify(scores, [one(logits, [1, 0], [point(4, 1)] * 2, source, greedy=True)])
    assert source.asked == []


@every
def test_greedy_takes_the_lowest_of_the_largest(kernels):
    """Ties, -0.0 beside 0.0, and +infinity, which is a score like any other (A21)."""
    rows = [[1, 3, 3, 2], [-0.0, 0.0, -1, 0.0], [0.0, -0.0, -1, -2], [5, np.inf, np.inf, 1]]
    scores = np.array(rows, np.float32)
    source = FewWords()
    rounds = [Round([], [], row, 1, source, 1, 1, 0, True) for row in range(4)]
    found = kernels.verify(torch.from_numpy(scores), rounds)
    assert found == [Verdict(0, token) for token in (1, 0, 0, 1)]


@every
def test_scores_far_below_the_largest_have_no_mass(kernels):
    """A24's cut-off, and the subnormal numbers of binary32 above it."""
    logits = np.array([[0.0, -80.0, -699.0, -701.0]] * 2, np.float32)
    for token, count in ((1, 1), (2, 1), (3, 0)):
        source = FewWords(ACCEPTANCE=[0, 1], CORRECTION=[0, 1], BONUS=[0, 1])
        (found,) = kernels.verify(
            torch.from_numpy(logits), [one(logits, [token], [point(4, token)], source)]
        )
        assert found.accepted == 0 and found.status in (OK, UNDECIDED), (token, count)
    assert math.exp(-699.0) > 0
