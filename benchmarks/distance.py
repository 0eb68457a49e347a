"""How far the binary64 verifier is from the oracle's fractions, on real rows of the embedded pair.

Decisions of the kernels are the exact ones, because what lies inside their error bound is decided
in integers; this measures the numbers that they start from. p is held against two truths: the exact
rational normalisation of the weights that the engine gave (A17), and the softmax of the model's own
logits in 40 digits, which adds the engine's exponential.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import Goal, Result
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, load_folder
from draftwire.engines.hf.sequence import CachedSequence
from draftwire.kernels import cpu
from draftwire.kernels.cpu import verify_loops as cpu_verify
from draftwire.kernels.cpu.verify_loops import target_weights
from draftwire.kernels.rows import QRow
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout
from spec.oracle import decisions

LIMIT = 1e-12
DIGITS = 40
TEMPERATURES = (0.6, 0.8, 1.0)
TEXT = (
    "import os\nimport sys\n\n\ndef main(arguments):\n    for name in os.listdir(arguments[0]):\n"
)


@dataclass(frozen=True)
class Case:
    """One real position: p's weights and logits of the target, q's counts of the drafter."""

    temperature: float
    weights: NDArray[np.float64]
    logits: NDArray[np.float32]
    q: QRow


def run(quick: bool, target: Path, drafter: Path) -> Result:
    """Measure acceptance and residual at every position of a text; print the largest distances."""
    torch.set_num_threads(1)
    worst = {"acceptance": 0.0, "residual": 0.0, "p": 0.0}
    positions = 4 if quick else 16
    count = 0
    for case in _cases(target, drafter, positions):
        count += 1
        given = [Fraction(float(weight)) for weight in case.weights]
        _widen(worst, _distances(case, given))
        if case.temperature == 1.0:
            softmax = _softmax(case.logits)
            _widen(worst, _distances(case, softmax))
    result = Result(f"distance of the binary64 verifier from the oracle, {count} real rows")
    result.figures["largest distance"] = {name: f"{value:.2e}" for name, value in worst.items()}
    result.goals = [
        Goal("acceptance probability, |binary64 - exact|", worst["acceptance"], LIMIT),
        Goal("residual law, total variation", worst["residual"], LIMIT),
    ]
    return result


def _widen(worst: dict[str, float], found: dict[str, float]) -> None:
    for name, value in found.items():
        worst[name] = max(worst[name], value)


def _cases(target: Path, drafter: Path, positions: int) -> Iterator[Case]:
    loaded = load_folder(target)
    engine, draft = HfTargetEngine.from_loaded(loaded), HfDraftEngine.from_folder(drafter)
    ids = [int(token) for token in loaded.tokenizer(TEXT)["input_ids"]]
    ends = np.linspace(4, len(ids), positions).astype(int)
    for temperature in TEMPERATURES:
        sampling = Sampling(temperature=temperature)
        for index, end in enumerate(ends):
            context, drafting = engine.open(ids[:end], sampling), draft.open()
            # The engine's own pass once more: another way to run the model rounds differently.
            logits = CachedSequence(loaded.model).forward(ids[:end], 1)[0].float().numpy()
            layout = Layout.SPARSE if index % 2 else Layout.DENSE
            policy = ProposalPolicy(layout, 1, temperature, support=32 if index % 2 else 0)
            q = cpu.quantise(draft.forward([(drafting, ids[:end])])[0].numpy(), policy)
            weights = np.empty(engine.row_width)
            target_weights(engine.score(context, ids[:end], ())[0].numpy(), weights)
            yield Case(temperature, weights, logits, q)
            engine.close(context)
            draft.close(drafting)


def _softmax(logits: NDArray[np.float32]) -> list[Fraction]:
    """Return exp(logit - max) in 40 digits."""
    largest = Decimal(float(logits.max()))
    with localcontext() as context:
        context.prec = DIGITS
        return [Fraction((Decimal(float(logit)) - largest).exp()) for logit in logits]


def _distances(case: Case, truth: list[Fraction]) -> dict[str, float]:
    """Hold the kernels' numbers against the oracle's for one row of p."""
    p = decisions.normalise(truth)
    counts = case.q.exact().dense()
    q = [Fraction(count, TOTAL) for count in counts]
    sums = np.empty(-(-case.weights.size // cpu_verify.BLOCK))
    total = cpu_verify.block_sums(case.weights, sums)
    acceptance = 0.0
    for token in np.flatnonzero(counts):
        ours = min(1.0, float(case.weights[token]) * TOTAL / (counts[token] * total))
        exact = decisions.acceptance(p, q, int(token))
        acceptance = max(acceptance, abs(float(Fraction(ours) - exact)))
    return {
        "acceptance": acceptance,
        "residual": _residual_distance(case, total, p, q),
        "p": _variation([Fraction(float(w) / total) for w in case.weights], list(p)),
    }


def _residual_distance(
    case: Case, total: float, p: tuple[Fraction, ...], q: list[Fraction]
) -> float:
    found = np.empty_like(case.weights)
    scale = TOTAL / total
    if case.q.ids is None:
        cpu_verify.residual_dense(case.weights, scale, case.q.counts, found)
    else:
        cpu_verify.residual_sparse(case.weights, scale, case.q.ids, case.q.counts, found)
    sums = np.empty(-(-found.size // cpu_verify.BLOCK))
    mass = cpu_verify.block_sums(found, sums)
    ours = [Fraction(float(left)) / Fraction(mass) for left in found]
    return _variation(ours, list(decisions.normalise(decisions.residual(p, q))))


def _variation(ours: list[Fraction], exact: list[Fraction]) -> float:
    """Return half the sum of the absolute differences."""
    return float(sum(abs(float(a - b)) for a, b in zip(ours, exact, strict=True)) / 2)
