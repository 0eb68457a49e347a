"""What is measured: held-out loss, expected acceptance, end tokens, cost of a forward pass."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from .vocabulary import BEGIN_ID, END_ID

TEMPERATURES = (1.0, 0.8, 0.6)
PASS_LENGTHS = (1, 6)


def windows(stream: np.ndarray, width: int, count: int) -> Tensor:
    """``count`` windows of ``width`` tokens at even distances, the same ones every time."""
    starts = np.linspace(0, len(stream) - width, count).astype(np.int64)
    return torch.from_numpy(np.stack([stream[s : s + width] for s in starts]))


@torch.no_grad()
def token_losses(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Nats of every token after the first, shape (windows, width - 1)."""
    rows = []
    for chunk in torch.split(tokens, 8):
        logits = model(input_ids=chunk).logits[:, :-1].float()
        rows.append(cross_entropy(logits.transpose(1, 2), chunk[:, 1:], reduction="none"))
    return torch.cat(rows)


def mean_loss(model: LlamaForCausalLM, tokens: Tensor) -> float:
    """Mean nats per token over all windows."""
    return token_losses(model, tokens).mean().item()


def loss_report(model: LlamaForCausalLM, tokens: Tensor) -> dict[str, float]:
    """Mean loss, loss by position in the context, and loss where the next token is the end."""
    losses = token_losses(model, tokens)
    is_end = tokens[:, 1:] == END_ID
    return {
        "all": losses.mean().item(),
        "positions_0_255": losses[:, :256].mean().item(),
        "positions_256_511": losses[:, 256:512].mean().item(),
        "positions_512_1022": losses[:, 512:].mean().item(),
        "end_token": losses[is_end].mean().item(),
    }


@torch.no_grad()
def acceptance(
    target: LlamaForCausalLM, drafter: LlamaForCausalLM, tokens: Tensor
) -> dict[str, float]:
    """Mean over positions of sum_x min(p(x), q(x)), both tempered alike, one a temperature."""
    sums = dict.fromkeys(TEMPERATURES, 0.0)
    for chunk in torch.split(tokens, 8):
        p_logits = target(input_ids=chunk).logits.float()
        q_logits = drafter(input_ids=chunk).logits.float()
        for temperature in TEMPERATURES:
            p = (p_logits / temperature).softmax(-1)
            q = (q_logits / temperature).softmax(-1)
            sums[temperature] += torch.minimum(p, q).sum().item()
    return {str(t): total / tokens.numel() for t, total in sums.items()}


@torch.no_grad()
def sample(model: LlamaForCausalLM, prompts: Tensor, length: int, seed: int) -> Tensor:
    """Continue every prompt by the model's own law (temperature 1) to ``length`` tokens in all.

    Rows run on past the end token into a next document, as the training stream does.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = prompts
    step_input = prompts
    cache = None
    while tokens.shape[1] < length:
        out = model(input_ids=step_input, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        weights = out.logits[:, -1].float().softmax(-1)
        step_input = torch.multinomial(weights, 1, generator=generator)
        tokens = torch.cat([tokens, step_input], dim=1)
    return tokens


def document_lengths(tokens: Tensor) -> dict[str, float]:
    """Of sampled rows: the share that ends a document, and the mean documents a 1000 tokens."""
    ends = tokens == END_ID
    begins_after_end = (tokens[:, 1:] == BEGIN_ID)[ends[:, :-1]]
    return {
        "rows_with_an_end": ends.any(1).float().mean().item(),
        "ends_per_1000_tokens": 1000 * ends.float().mean().item(),
        "begin_follows_end": begins_after_end.float().mean().item() if ends.any() else 0.0,
    }


@torch.no_grad()
def pass_milliseconds(model: LlamaForCausalLM, context: int = 64) -> dict[str, float]:
    """Median single-threaded time of a forward pass over 1 and 6 new tokens after a context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    result = {}
    for new in PASS_LENGTHS:
        times = []
        for _ in range(15):
            cache = model(input_ids=torch.full((1, context), 5), use_cache=True).past_key_values
            start = time.perf_counter()
            model(input_ids=torch.full((1, new), 5), past_key_values=cache, use_cache=True)
            times.append(1000 * (time.perf_counter() - start))
        result[str(new)] = statistics.median(times)
    torch.set_num_threads(threads)
    return result
