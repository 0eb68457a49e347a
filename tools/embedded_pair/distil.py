"""Distil the drafter of an existing pair on what its target writes; the target stays as it is.

The loss is what acceptance loses: the L1 distance of q and p (twice the total variation, and one
minus that is the acceptance), and a little cross-entropy, whose gradient does not vanish where q
is still far from p; at the temperatures that requests come with.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from . import own_text, shapes
from .__main__ import model_report
from .card import write_card
from .corpus import load_corpus
from .measure import acceptance as pair_acceptance
from .measure import sample, windows
from .optimiser import Budget, Optimiser
from .own_text import OwnText
from .tokens_per_pass import measured
from .vocabulary import encode_documents

ROWS = 16  # of a step
VALIDATION_ROWS = 64
TEMPERATURES = (0.65, 1.0)  # of the loss, by turns of the rows
VARIATION_SHARE = 0.9
MATRIX_RATE, VECTOR_RATE = 0.01, 0.002
SAMPLING_SHARE = 0.3
CHECK_SECONDS = 120.0


def batch_of(text: OwnText, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Tokens int64 (rows, LENGTH) and the target's logits binary32 (rows, LENGTH, V)."""
    tokens = torch.from_numpy(text.tokens[rows].astype(np.int64))
    return tokens, torch.from_numpy(text.logits[rows]).float()


def loss_of(drafter: LlamaForCausalLM, tokens: Tensor, logits: Tensor) -> Tensor:
    """Return 0.9 of the L1 distance and 0.1 of the cross-entropy, means over positions."""
    turns = torch.arange(len(tokens)) % len(TEMPERATURES)
    divisors = torch.tensor(TEMPERATURES)[turns][:, None, None]
    p = (logits / divisors).softmax(-1)
    q_log = (drafter(input_ids=tokens, use_cache=False).logits / divisors).log_softmax(-1)
    distance = (p - q_log.exp()).abs().sum(-1).mean()
    entropy = -(p * q_log).sum(-1).mean()
    loss: Tensor = distance * VARIATION_SHARE + entropy * (1 - VARIATION_SHARE)
    return loss


@torch.no_grad()
def acceptance(drafter: LlamaForCausalLM, text: OwnText, rows: np.ndarray) -> dict[float, float]:
    """Mean over positions of sum_x min(p(x), q(x)), behind the prompts, one a temperature."""
    sums, count = dict.fromkeys((0.6, 1.0), 0.0), 0
    for chunk in np.array_split(rows, len(rows) // 16):
        tokens, logits = batch_of(text, chunk)
        made = drafter(input_ids=tokens, use_cache=False).logits[:, own_text.PROMPT :]
        count += made.shape[0] * made.shape[1]
        for at in sums:
            p = (logits[:, own_text.PROMPT :] / at).softmax(-1)
            sums[at] += torch.minimum(p, (made / at).softmax(-1)).sum().item()
    return {at: total / count for at, total in sums.items()}


def distil(
    drafter: LlamaForCausalLM,
    text: OwnText,
    rng: np.random.Generator,
    seconds: float,
    keep: Callable[[LlamaForCausalLM], None],
) -> dict[str, Any]:
    """Train for ``seconds`` and keep the best; returns steps, tokens and acceptances."""
    validation = np.arange(len(text) - VALIDATION_ROWS, len(text))
    training = len(text) - VALIDATION_ROWS
    before = best = acceptance(drafter, text, validation)
    print(f"[distil] before: {before}", flush=True)
    optimiser, budget = (
        Optimiser(drafter, drafter.model.layers, MATRIX_RATE, VECTOR_RATE),
        Budget(seconds, 0.03, 0.7),
    )
    start = checked = time.monotonic()
    steps, order = 0, np.empty(0, dtype=np.int64)
    while budget.used < 1.0:
        if len(order) < ROWS:
            order = rng.permutation(training)
        rows, order = order[:ROWS], order[ROWS:]
        torch.autograd.backward(loss_of(drafter, *batch_of(text, rows)))
        optimiser.step(budget.scale())
        steps += 1
        if time.monotonic() - checked > CHECK_SECONDS or budget.used >= 1.0:
            reached, checked = acceptance(drafter, text, validation), time.monotonic()
            better = sum(reached.values()) > sum(best.values())
            seen = steps * ROWS * own_text.LENGTH
            mark = " best" if better else ""
            print(f"[distil] {checked - start:5.0f}s {seen} tokens {reached}{mark}", flush=True)
            if better:
                best = reached
                keep(drafter)
    return {
        "seconds": round(time.monotonic() - start, 1),
        "steps": steps,
        "tokens": steps * ROWS * own_text.LENGTH,
        "acceptance_before": {str(at): round(value, 4) for at, value in before.items()},
        "acceptance_after": {str(at): round(value, 4) for at, value in best.items()},
    }


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.embedded_pair.distil", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--pair", type=Path, default=Path("src/draftwire/models"))
    parser.add_argument("--minutes", type=float, default=60.0, help="wall-clock time in all")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--text", type=Path, help="a folder of what the target wrote before")
    parser.add_argument("--kept", type=Path, default=Path(".out/own_text"), help="where to keep it")
    parser.add_argument("--output", type=Path, default=Path(".out/pair"))
    return parser.parse_args()


def main() -> None:
    """Sample, distil, measure before and after, and write the drafter, card and report."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    seconds = 60 * options.minutes
    tokenizer = Tokenizer.from_file(str(options.pair / "target" / "tokenizer.json"))
    target, drafter = (
        AutoModelForCausalLM.from_pretrained(options.pair / role).eval()
        for role in ("target", "drafter")
    )
    corpus = load_corpus()
    if options.text is None:
        stream = encode_documents(tokenizer, corpus.training)
        text = own_text.write(target, stream, seconds * SAMPLING_SHARE, options.seed, options.kept)
        seconds *= 1 - SAMPLING_SHARE
    else:
        text = own_text.read(options.text)
    folder = options.output / "drafter"
    rng = np.random.default_rng(options.seed)
    figures = distil(
        drafter, text, rng, seconds, partial(_keep, tokenizer=tokenizer, folder=folder)
    )
    figures |= {"minutes": options.minutes, "seed": options.seed, "own_tokens": text.tokens.size}
    report = json.loads((options.pair / "report.json").read_text(encoding="utf-8"))
    held_out = encode_documents(tokenizer, corpus.held_out)
    report = reported(report, options.pair, folder, held_out, figures)
    made = json.dumps(report, indent=2) + "\n"
    (options.output / "report.json").write_text(made, encoding="utf-8")
    (options.output / "README.md").write_text(write_card(report), encoding="utf-8")
    print(json.dumps(report["own_text"], indent=2))


def reported(
    report: dict[str, Any],
    pair: Path,
    made: Path,
    held_out: np.ndarray,
    figures: dict[str, Any],
) -> dict[str, Any]:
    """Return a pair's report with the drafter that was made measured in the place of its own.

    figures: of the distillation. Tokens a target pass are measured for both.
    """
    target, drafter = (
        AutoModelForCausalLM.from_pretrained(each).eval() for each in (pair / "target", made)
    )
    tokens = windows(held_out, 1024, 40)
    own = sample(target, windows(held_out, 8, 64), 256, seed=2**20)
    return report | {
        "drafter": model_report(drafter, made, tokens),
        "acceptance_held_out": pair_acceptance(target, drafter, tokens[:, :512]),
        "acceptance_sampled": pair_acceptance(target, drafter, own),
        "own_text": figures
        | {
            "tokens_per_pass_before": measured(pair / "target", pair / "drafter"),
            "tokens_per_pass_after": measured(pair / "target", made),
        },
    }


def _keep(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    shapes.export(model, tokenizer, folder)


if __name__ == "__main__":
    main()
