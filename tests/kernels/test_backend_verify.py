"""Every backend takes the exact layer's decision, or says that it does not (A17-A24)."""

from itertools import chain, repeat

import numpy as np
import pytest
import torch

from draftwire.errors import ArithmeticRefusalError, RefusalCode
from draftwire.exact import quantise as exact_quantise
from draftwire.exact import verify as exact
from draftwire.exact.words import Address, Domain, KeyedWords, RequestKey
from draftwire.kernels.backend import (
    NO_TOKEN,
    OK,
    UNDECIDED,
    Draws,
    QRows,
)
from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.cpu.target_loops import target_weights
from draftwire.kernels.protocol import Round
from draftwire.kernels.torch import verify as torch_verify
from draftwire.verifier.judge import judge
from draftwire.wire.registry import TOTAL, Outcome

from .batches import POLICIES, host, moved, policy
from .interpreted import BLOCKS_OF_16, DEVICE, NUMPY, TORCH, TRITON

EVERY = (NUMPY, TORCH, DEVICE, TRITON)
NAMES = ("numpy", "torch", "torch as on a device", "triton")
DOMAINS = (Domain.ACCEPTANCE, Domain.CORRECTION, Domain.BONUS)


def rounds_of(batch, depth, size, seed, given=None):
    """Logits, tokens, q and keys of ``batch`` random rounds; drafts near the target."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((batch, depth + 1, size)) * 2).astype(np.float32)
    draft = logits[:, :depth] + rng.standard_normal((batch, depth, size)) * 0.5
    logits[::9, 0, : size // 2] = -np.inf  # tokens that the target forbids
    logits[::11, -1, 1:] = -np.inf  # one legal id
    q, _ = NUMPY.quantise(draft.astype(np.float32).reshape(-1, size), given or policy())
    tokens = NUMPY.draw(q, rng.integers(0, TOTAL, batch * depth)).reshape(batch, depth)
    ids = None if q.ids is None else q.ids.reshape(batch, depth, -1)
    keys = [RequestKey(seed * 1000 + index) for index in range(batch)]
    return logits, tokens, QRows(size, ids, q.counts.reshape(batch, depth, -1)), keys


def host_rows(q, index):
    ids = None if q.ids is None else q.ids[index]
    return CpuKernels().host_rows(QRows(q.vocab_size, ids, q.counts[index]))


def draws_of(backend, requests, depth):
    keys = np.array([[request.key(domain) for domain in DOMAINS] for request in requests])
    addresses = np.array([[3, index, 40] for index in range(len(requests))])
    return backend.draws(backend.from_host(keys), backend.from_host(addresses), depth)


def verdicts_of(backend, logits, tokens, q, draws):
    made = backend.verify(
        backend.from_host(logits), backend.from_host(tokens), moved(backend, q), draws
    )
    return [backend.to_host(each) for each in (made.accepted, made.tokens, made.status)], made


def exactly(logits, tokens, rows, source, index):
    """The exact layer's verdict on the rational values of A24's weights."""
    weights = np.empty(logits.shape)
    for scores, out in zip(logits, weights, strict=True):
        target_weights(scores, out)
    return exact.verify(
        [exact_quantise.integers(row.tolist()) for row in weights],
        [(token, row.exact()) for token, row in zip(tokens.tolist(), rows, strict=True)],
        source,
        generation=3,
        round=index,
        first_position=40,
    )


@pytest.mark.parametrize("size", [2, 3, 7, 20])
@pytest.mark.parametrize("given", [policy(), policy(support=2), policy(top_p=TOTAL // 2)])
def test_verdicts_are_the_exact_ones(size, given):
    """12 combinations of 60 rounds, K = 3: 720 rounds against the exact layer on each backend."""
    logits, tokens, q, requests = rounds_of(60, 3, size, seed=size, given=given)
    expected = [
        exactly(logits[i], tokens[i], host_rows(q, i), KeyedWords(requests[i]), i)
        for i in range(60)
    ]
    assert {verdict.outcome for verdict in expected} == {"correction", "bonus"}
    for backend in EVERY:
        found, _ = verdicts_of(backend, logits, tokens, q, draws_of(backend, requests, 3))
        assert (found[2] == OK).all()
        assert found[0].tolist() == [verdict.accepted for verdict in expected]
        assert found[1].tolist() == [verdict.token for verdict in expected]


@pytest.mark.parametrize(("index", "size"), list(enumerate([2, 5, 11, 30])))
def test_6000_rounds_are_equal_on_numpy_torch_and_triton(index, size):
    """4 sizes of 1,500 rounds, K = 3: 6,000 rounds with their draws on all three backends."""
    given = (policy(), policy(support=3), POLICIES[9], policy(2.0**14))[index]
    logits, tokens, q, requests = rounds_of(1500, 3, size, seed=index + 50, given=given)
    expected, _ = verdicts_of(NUMPY, logits, tokens, q, draws_of(NUMPY, requests, 3))
    assert (expected[2] == OK).all()
    for backend in EVERY[1:]:
        found, _ = verdicts_of(backend, logits, tokens, q, draws_of(backend, requests, 3))
        assert all((one == other).all() for one, other in zip(found, expected, strict=True))


def test_rounds_of_several_blocks_and_bfloat16_are_equal_on_triton():
    logits, tokens, q, requests = rounds_of(200, 2, 45, seed=4, given=policy(support=6))
    half = torch.from_numpy(logits).to(torch.bfloat16)
    wide = half.to(torch.float32).numpy()
    expected, _ = verdicts_of(NUMPY, wide, tokens, q, draws_of(NUMPY, requests, 2))
    for backend in (TORCH, DEVICE, BLOCKS_OF_16):
        draws = draws_of(backend, requests, 2)
        made = backend.verify(half, backend.from_host(tokens), moved(backend, q), draws)
        for one, other in zip(expected, (made.accepted, made.tokens, made.status), strict=True):
            assert (one == backend.to_host(other)).all()


def test_a_round_at_a_real_vocabulary_is_equal_on_torch():
    logits, tokens, q, requests = rounds_of(4, 5, 129_280, seed=5)
    expected, _ = verdicts_of(NUMPY, logits, tokens, q, draws_of(NUMPY, requests, 5))
    for backend in (TORCH, DEVICE):
        found, _ = verdicts_of(backend, logits, tokens, q, draws_of(backend, requests, 5))
        assert all((one == other).all() for one, other in zip(found, expected, strict=True))


def test_words_of_a_round_are_those_of_the_exact_layer():
    requests = [RequestKey(index) for index in range(7)]
    for backend in EVERY:
        draws = draws_of(backend, requests, 3)
        for index, request in enumerate(requests):
            for position in range(4):
                for domain, words in zip(DOMAINS, vars_of(draws), strict=True):
                    if (domain is Domain.BONUS) != (position == 3):
                        continue
                    own = KeyedWords(request).words(Address(3, index, 40 + position, domain))
                    first = next(own) << 24 | next(own)
                    found = backend.to_host(words)[index]
                    assert (found if domain is Domain.BONUS else found[position]) == first


def vars_of(draws):
    return draws.acceptance, draws.correction, draws.bonus


class Words:
    """The same words for every address, of the caller's own choice."""

    def __init__(self, *words):
        self._words = words

    def words(self, address):
        return chain(iter(self._words), repeat(0))


def one_round(backend, masses, counts, token, first):
    """Verify one draft of one request, U the same in every domain, then decide on the host."""
    scores = np.array([np.log(each) if each else -np.inf for each in masses], np.float32)
    q = QRows(len(counts), None, np.array([[counts]], np.int32))
    tokens = np.array([[token]])
    every = np.array([[first]])
    draws = Draws(*(backend.from_host(each) for each in (every, every, every[0])))
    given = np.stack([scores, scores])[None]
    found, _ = verdicts_of(backend, given, tokens, q, draws)
    words = Words(first >> 24, first & 0xFFFFFF)
    this = Round([token], host_rows(q, 0), 0, 2, words, 3, 0, 40)
    (judgement,) = judge(CpuKernels(), given[0], [this])
    found = [int(each[0]) for each in found]
    if found[2] == OK:
        assert found[:2] == [judgement.accepted, judgement.tokens[-1]]
    return found, judgement


@pytest.mark.parametrize("backend", EVERY, ids=NAMES)
def test_a_choice_within_its_bound_is_left_to_the_host_and_exact_there(backend):
    """p = 1/2, q = 3/4: the threshold 2/3 lies strictly inside one step of 48 bits."""
    edge = 2 * (1 << 48) // 3
    three = TOTAL * 3 // 4
    for first, accepted in ((edge - 1000, 1), (edge, 1), (edge + 1, 0), (edge + 1000, 0)):
        found, verdict = one_round(backend, [1, 1], [three, TOTAL - three], 0, first)
        assert verdict.accepted == accepted  # the third word is 0, below the rest of 2/3
        if first == edge:
            assert found == [0, NO_TOKEN, UNDECIDED]


def test_a_bound_of_nothing_is_seen(monkeypatch):
    """The mutant of the test above: without its bound a backend guesses, and says nothing."""
    monkeypatch.setattr(torch_verify, "bound_of", lambda size: 0.0)
    counts = [TOTAL * 3 // 4, TOTAL // 4]
    close = [2 * (1 << 48) // 3 + step for step in (-1, 0, 1)]
    found = [one_round(DEVICE, [1, 1], counts, 0, first)[0] for first in close]
    assert [status for _, _, status in found].count(UNDECIDED) < 2


@pytest.mark.parametrize("backend", EVERY, ids=NAMES)
def test_d5_an_impossible_token_is_rejected_at_word_0_and_never_drawn(backend):
    quarter = TOTAL // 4
    for first in (0, 1, (1 << 48) - 1):
        _, verdict = one_round(backend, [0, 1, 0, 3], [quarter] * 4, 0, first)
        assert (verdict.accepted, verdict.outcome) == (0, Outcome.CORRECTION)
        assert verdict.tokens[-1] == 3  # p - q: 0, 0, -1/4, 1/2


@pytest.mark.parametrize("backend", EVERY, ids=NAMES)
def test_g25_one_legal_id_is_always_the_token(backend):
    for first in (0, 12345, (1 << 48) - 1):
        counts = [TOTAL // 2, TOTAL // 4, TOTAL // 4]
        _, verdict = one_round(backend, [0, 1, 0], counts, 0, first)
        assert (verdict.accepted, verdict.tokens[-1]) == (0, 1)
        _, verdict = one_round(backend, [0, 1, 0], counts, 1, first)
        assert (verdict.accepted, verdict.tokens[-1]) == (1, 1)


@pytest.mark.parametrize("backend", EVERY, ids=NAMES)
def test_residual_over_the_full_vocabulary_not_the_sparse_support(backend):
    """q on two of four ids; p - q lives mostly outside the support."""
    logits = np.zeros((1, 4), np.float32)
    q = QRows(4, np.array([[0, 1]], np.int32), np.array([[TOTAL // 2] * 2], np.int32))
    given = backend.from_host(logits), moved(backend, q)
    mass = backend.to_host(backend.residual_mass(*given))
    assert mass.tolist() == [0.5]
    for first, token in ((1 << 46, 2), (3 << 46, 3)):
        drawn = backend.correction(*given, backend.from_host(np.array([first])))
        assert backend.to_host(drawn.tokens).tolist() == [token]


@pytest.mark.parametrize("backend", EVERY, ids=NAMES)
def test_no_residual_is_a_status_never_another_token(backend):
    """p = q = (1/2, 1/2): nothing is left; and a correction of it is refused, as an error."""
    logits = np.zeros((2, 2), np.float32)
    q = QRows(2, None, np.full((2, 2), TOTAL // 2, np.int32))
    first = backend.from_host(np.array([0, 1 << 47]))
    drawn = backend.correction(backend.from_host(logits), moved(backend, q), first)
    assert backend.to_host(drawn.status).tolist() == [RefusalCode.ZERO_RESIDUAL] * 2
    assert backend.to_host(drawn.tokens).tolist() == [NO_TOKEN] * 2


@pytest.mark.parametrize("backend", EVERY, ids=NAMES)
def test_e49_faults_of_one_request_are_its_own(backend):
    """NaN in a row that is judged; NaN behind a rejection is not looked at; a token without q."""
    logits, tokens, q, requests = rounds_of(8, 2, 5, seed=11)
    logits[:, :, :] = 0.0
    q.counts[:] = np.array([0, 0, 0, 0, TOTAL], np.int32)
    tokens[:] = 4
    clean, _ = verdicts_of(backend, logits, tokens, q, draws_of(backend, requests, 2))
    assert not clean[2].any()
    first_stands = int(np.flatnonzero(clean[0] >= 1)[0])
    first_falls = int(np.flatnonzero(clean[0] == 0)[0])
    logits[first_stands, 1, 2] = np.nan
    logits[first_falls, 1:, 2] = np.nan
    others = [index for index in range(8) if index not in (first_stands, first_falls)]
    logits[others[0], 0] = -np.inf
    tokens[others[1], 1] = 0
    tokens[others[2], 0] = 5
    found, _ = verdicts_of(backend, logits, tokens, q, draws_of(backend, requests, 2))
    expected = np.zeros(8, np.int32)
    expected[first_stands] = RefusalCode.NON_FINITE
    expected[others[:3]] = [RefusalCode.ZERO_MASS, RefusalCode.ZERO_Q, RefusalCode.OUT_OF_RANGE]
    assert found[2].tolist() == expected.tolist()
    assert (found[1][expected == 0] == clean[1][expected == 0]).all()
    assert found[0][first_falls] == 0


def test_shapes_that_do_not_fit_are_refused():
    logits, tokens, q, requests = rounds_of(2, 2, 4, seed=1)
    for backend in (TORCH, TRITON):
        with pytest.raises(ArithmeticRefusalError):
            draws = draws_of(backend, requests, 2)
            given = backend.from_host(logits[:, :2]), backend.from_host(tokens)
            backend.verify(*given, moved(backend, q), draws)


def test_p_far_below_the_largest_is_zero_and_the_rest_is_exp64():
    scores = np.array([0.0, -1.0, -27.5, -699.0, -700.0, -700.5, -np.inf], np.float32)
    weights = np.empty(7)
    target_weights(scores, weights)
    expected = [exact_quantise.exp64(float(score)) for score in scores[:5]]
    assert weights.tolist() == [*expected, 0.0, 0.0]
    assert abs(weights[3] / np.exp(-699.0) - 1) < 2.0**-44


def test_a_round_on_torch_never_waits_for_the_host(monkeypatch):
    """Tensors without values: an .item(), or a shape that depends on a value, would raise."""

    def zeros(*shape, dtype=torch.int64):
        return torch.zeros(*shape, dtype=dtype, device="meta")

    monkeypatch.setitem(DEVICE._layouts, 3, (zeros(7), zeros(7)))
    draws = DEVICE.draws(zeros(4, 3, 2), zeros(4, 3), 3)
    for given in (policy(), policy(support=5), POLICIES[9], policy(0.0)):
        q, _ = DEVICE.quantise(zeros(12, 50, dtype=torch.float32), given)
        assert DEVICE.draw(q, zeros(12)).shape == (12,)
        ids = None if q.ids is None else q.ids.view(4, 3, -1)
        rows = QRows(50, ids, q.counts.view(4, 3, -1))
        made = DEVICE.verify(zeros(4, 4, 50, dtype=torch.float32), zeros(4, 3), rows, draws)
        assert made.tokens.shape == (4,)


def test_the_host_keeps_rows_as_they_are():
    q, _ = NUMPY.quantise(np.zeros((2, 4), np.float32), policy())
    for backend in EVERY:
        assert (host(backend, moved(backend, q)).counts == q.counts).all()
