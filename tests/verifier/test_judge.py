"""What a round commits: outcomes, refused rows, and the law of what stands before them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwire.errors import RefusalCode
from draftwire.exact.words import KeyedWords, RequestKey, WordSource
from draftwire.kernels.protocol import OK, UNDECIDED, Round, Verdict
from draftwire.kernels.registry import kernels_for
from draftwire.kernels.rows import QRow
from draftwire.verifier.judge import Judgement, judge
from draftwire.wire.registry import TOTAL, Outcome

CPU = kernels_for("cpu", "cpu")
KEYED = KeyedWords(RequestKey(1))
HALF = QRow(2, None, np.array([TOTAL // 2, TOTAL // 2], np.int32))
ZERO = QRow(2, np.array([0], np.int32), np.array([TOTAL], np.int32))


def of(
    rows: Sequence[Sequence[float]],
    tokens: Sequence[int],
    q: QRow = HALF,
    words: WordSource = KEYED,
    *,
    row_count: int | None = None,
    greedy: bool = False,
    dtype: type = np.float64,
) -> Judgement:
    scores = np.array(rows, dtype)
    count = len(rows) if row_count is None else row_count
    this = Round(tokens, [q] * len(tokens), 0, count, words, 1, 1, 9, greedy)
    return judge(CPU, scores, [this])[0]


def code_of(judgement: Judgement) -> RefusalCode | None:
    return None if judgement.refusal is None else judgement.refusal.code


def test_every_outcome_has_its_tokens() -> None:
    sure = [[1.0, 0.0]] * 3
    assert of(sure, (0, 0), ZERO) == Judgement(Outcome.BONUS, 2, (0, 0, 0))
    assert of(sure, (0, 1)) == Judgement(Outcome.CORRECTION, 1, (0, 0))
    assert of(sure[:1], ()) == Judgement(Outcome.TARGET_ONLY, 0, (0,))
    assert of(sure[:2], (0, 0), ZERO, row_count=2) == Judgement(Outcome.ENDED, 2, (0, 0))
    assert of(sure[:2], (1, 0), row_count=2) == Judgement(Outcome.CORRECTION, 0, (0,))


REFUSED = [
    ([math.nan, 1.0], np.float64, RefusalCode.NON_FINITE),
    ([1.0, math.inf], np.float64, RefusalCode.NON_FINITE),
    ([1.0, -1.0], np.float64, RefusalCode.NEGATIVE_WEIGHT),
    ([0.0, 0.0], np.float64, RefusalCode.ZERO_MASS),
    ([math.nan, 1.0], np.float32, RefusalCode.NON_FINITE),
    ([1.0, math.inf], np.float32, RefusalCode.NON_FINITE),
    ([-math.inf, -math.inf], np.float32, RefusalCode.ZERO_MASS),
]


@pytest.mark.parametrize(("bad", "dtype", "code"), REFUSED)
def test_a_refused_row_keeps_what_stands_before_it(
    bad: Sequence[float], dtype: type, code: RefusalCode
) -> None:
    sure = [1.0, 0.0] if dtype is np.float64 else [0.0, -math.inf]
    for place in range(4):
        rows = [sure] * place + [bad] + [sure] * (3 - place)
        found = of(rows, (0, 0, 0), ZERO, dtype=dtype)
        assert (found.outcome, found.accepted, found.tokens) == (Outcome.ENDED, place, (0,) * place)
        assert code_of(found) is code
    # Behind a rejection it is not looked at.
    found = of([sure, bad, bad], (1, 0), dtype=dtype)
    assert found == Judgement(Outcome.CORRECTION, 0, (0,))


def test_a_greedy_target_refuses_nan_and_nothing_else_that_has_a_largest() -> None:
    for row, token in (([1.0, math.inf], 1), ([2.0, 2.0], 0), ([-math.inf, 0.0], 1)):
        assert of([row], (), greedy=True, dtype=np.float32).tokens == (token,)
    for row, code in (([math.nan, 1.0], "NON_FINITE"), ([-math.inf] * 2, "ZERO_MASS")):
        found = of([[0.0, 1.0], row], (1,), greedy=True, dtype=np.float32)
        assert found.tokens == (1,) and found.outcome is Outcome.ENDED
        assert code_of(found) is RefusalCode[code]


class Fixed:
    """Kernels that say what they are told to."""

    name = "fixed"

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def verify(self, scores: NDArray[np.float64], rounds: Sequence[Round]) -> list[Verdict]:
        return [self.verdict for _ in rounds]

    def host_row(self, scores: NDArray[np.float64], row: int) -> NDArray[np.float64]:
        return scores[row]


@pytest.mark.parametrize("code", [RefusalCode.ZERO_Q, RefusalCode.ZERO_RESIDUAL])
def test_a_fault_of_q_is_an_error_and_never_a_token(code: RefusalCode) -> None:
    this = Round((0,), (HALF,), 0, 2, KEYED, 1, 1, 9)
    (found,) = judge(Fixed(Verdict(0, None, code)), np.ones((2, 2)), [this])  # type: ignore[arg-type]
    assert (found.tokens, code_of(found)) == ((), code)
    assert of([[1.0, 1.0]] * 2, (1,), ZERO).refusal is not None  # q of the draft is 0


def test_an_undecided_round_is_settled_from_its_own_rows() -> None:
    """Whatever a kernel left open, from every place on; a residual without mass says so."""
    rows = np.array([[3.0, 1.0], [1.0, 3.0], [1.0, 2.0]])
    for seed in range(200):
        this = Round((0, 1), (HALF, HALF), 0, 3, KeyedWords(RequestKey(seed)), 1, 1, 9)
        (expected,) = judge(CPU, rows, [this])
        for begin in range(expected.accepted + 1):
            kernels = Fixed(Verdict(begin, None, UNDECIDED))
            assert judge(kernels, rows, [this]) == [expected]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="-1"):
        RefusalCode(UNDECIDED)
    assert OK not in list(RefusalCode)
