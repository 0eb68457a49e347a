"""The training phases, each bounded by its share of wall-clock time."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from .optimiser import Budget, Optimiser

LossFunction = Callable[[LlamaForCausalLM, Tensor, float], Tensor]
Batches = Callable[[int], Tensor]

LOG_SECONDS = 20.0
CHECK_SECONDS = 150.0


@dataclass
class Phase:
    """One phase: what to draw, what to minimise, at which rates, and what was reached.

    ``score`` is measured on held-out text, lower is better; ``keep`` saves a new best model.
    """

    name: str
    batches: Batches
    loss: LossFunction
    matrix_rate: float
    vector_rate: float
    budget: Budget
    score: Callable[[LlamaForCausalLM], float]
    keep: Callable[[LlamaForCausalLM], None]
    steps: int = 0
    tokens: int = 0
    best: float = field(default=float("inf"))


def random_windows(stream: np.ndarray, rng: np.random.Generator, width: int, count: int) -> Tensor:
    """``count`` windows of ``width`` tokens at uniformly random places of the stream."""
    starts = rng.integers(0, len(stream) - width, size=count)
    return torch.from_numpy(np.stack([stream[s : s + width] for s in starts]))


def next_token_loss(model: LlamaForCausalLM, tokens: Tensor, used: float) -> Tensor:
    """Mean nats per token of the text itself."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    loss: Tensor = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return loss


def distillation_loss(target: LlamaForCausalLM) -> LossFunction:
    """KL(p || q) over the full vocabulary, moving to the total variation in the second half.

    One minus the total variation is the acceptance itself; the KL term comes first because its
    gradient does not vanish where q is still far from p.
    """

    def loss(model: LlamaForCausalLM, tokens: Tensor, used: float) -> Tensor:
        with torch.no_grad():
            p_log = target(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
        q_log = model(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
        p = p_log.exp()
        divergence: Tensor = (p * (p_log - q_log)).sum(-1).mean()
        weight = max(0.0, min(0.8, 2.0 * used - 1.0))
        if weight == 0.0:
            return divergence
        variation: Tensor = 0.5 * (p - q_log.exp()).abs().sum(-1).mean()
        return divergence.mul(1.0 - weight) + variation.mul(2.0 * weight)

    return loss


def _check(phase: Phase, model: LlamaForCausalLM, elapsed: float) -> dict[str, Tensor] | None:
    """Score the model; when it is the best so far, save it and return a copy of its weights."""
    reached = phase.score(model)
    better = reached < phase.best
    mark = " best" if better else ""
    print(f"[{phase.name}] {elapsed:5.0f}s score {reached:.4f}{mark}", flush=True)
    if not better:
        return None
    phase.best = reached
    phase.keep(model)
    weights: dict[str, Tensor] = copy.deepcopy(model.state_dict())
    return weights


def run_phase(phase: Phase, model: LlamaForCausalLM) -> dict[str, float]:
    """Train until the budget is used, leave the best weights in ``model``, and report."""
    start = logged = checked = time.monotonic()
    optimiser = Optimiser(model, model.model.layers, phase.matrix_rate, phase.vector_rate)
    recent: list[float] = []
    best: dict[str, Tensor] = model.state_dict()
    while phase.budget.used < 1.0:
        batch = phase.batches(phase.steps)
        loss = phase.loss(model, batch, phase.budget.used)
        torch.autograd.backward(loss)
        optimiser.step(phase.budget.scale())
        phase.steps += 1
        phase.tokens += batch.numel()
        recent.append(loss.item())
        now = time.monotonic()
        if now - logged > LOG_SECONDS:
            rate = phase.tokens / (now - start)
            print(
                f"[{phase.name}] {now - start:5.0f}s step {phase.steps} "
                f"loss {np.mean(recent):.4f} {rate:.0f} tokens/s",
                flush=True,
            )
            recent.clear()
            logged = now
        if now - checked > CHECK_SECONDS:
            best = _check(phase, model, now - start) or best
            checked = time.monotonic()
    best = _check(phase, model, time.monotonic() - start) or best
    model.load_state_dict(best)
    return {
        "seconds": round(time.monotonic() - start, 1),
        "steps": phase.steps,
        "tokens": phase.tokens,
        "best_score": round(phase.best, 4),
    }
