"""Text that the target writes itself, with its logits, for a drafter to learn from."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, StaticCache

from .vocabulary import BEGIN_ID, VOCABULARY_SIZE

ROWS = 128  # sampled at a time
LENGTH = 160  # tokens of a row, its prompt included
PROMPT = 24  # tokens of each prompt
TEMPERATURES = (0.6, 0.8, 1.0)  # of the rows, in turn


@dataclass(frozen=True)
class OwnText:
    """tokens: int16 (rows, LENGTH). logits: float16 (rows, LENGTH, V), of the token after each."""

    tokens: np.ndarray
    logits: np.ndarray

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.tokens)


def prompts(stream: np.ndarray, rng: np.random.Generator, count: int) -> Tensor:
    """``count`` prompts of PROMPT tokens: beginnings of documents."""
    starts = np.flatnonzero(stream[:-LENGTH] == BEGIN_ID)
    chosen = rng.choice(starts, size=count)
    return torch.from_numpy(np.stack([stream[s : s + PROMPT] for s in chosen]).astype(np.int64))


@torch.inference_mode()
def write_rows(
    target: LlamaForCausalLM, begun: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Continue prompts to LENGTH tokens; tokens int64 (rows, LENGTH), logits float16 (.., V)."""
    rows = len(begun)
    cache = StaticCache(config=target.config, max_cache_len=LENGTH)
    divisors = torch.tensor([TEMPERATURES[row % len(TEMPERATURES)] for row in range(rows)])[:, None]
    logits = torch.empty(rows, LENGTH, VOCABULARY_SIZE, dtype=torch.float16)
    tokens = torch.empty(rows, LENGTH, dtype=torch.int64)
    tokens[:, : begun.shape[1]] = begun
    fed, ends = 0, begun.shape[1]
    while fed < LENGTH:
        positions = torch.arange(fed, ends)[None]
        out = target(
            input_ids=tokens[:, fed:ends],
            past_key_values=cache,
            use_cache=True,
            position_ids=positions,
        )
        logits[:, fed:ends] = out.logits
        fed = ends
        if fed < LENGTH:
            weights = (out.logits[:, -1] / divisors).softmax(-1)
            tokens[:, fed : fed + 1] = torch.multinomial(weights, 1, generator=generator)
            ends = fed + 1
    return tokens, logits


def write(
    target: LlamaForCausalLM, stream: np.ndarray, seconds: float, seed: int, folder: Path
) -> OwnText:
    """Let the target write for about ``seconds``; what it wrote is kept in files of ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    start, rows = time.monotonic(), 0
    with (folder / "tokens.i16").open("wb") as ids, (folder / "logits.f16").open("wb") as scores:
        while not rows or time.monotonic() - start < seconds:
            tokens, logits = write_rows(target, prompts(stream, rng, ROWS), generator)
            tokens.to(torch.int16).numpy().tofile(ids)
            logits.numpy().tofile(scores)
            rows += ROWS
            rate = rows * LENGTH / (time.monotonic() - start)
            print(f"[sampling] {rows * LENGTH} tokens, {rate:.0f} tokens/s", flush=True)
    return read(folder)


def read(folder: Path) -> OwnText:
    """Map what :func:`write` has kept."""
    tokens = np.memmap(folder / "tokens.i16", np.int16, "r").reshape(-1, LENGTH)
    logits = np.memmap(folder / "logits.f16", np.float16, "r")
    return OwnText(tokens, logits.reshape(-1, LENGTH, VOCABULARY_SIZE)[: len(tokens)])
