"""Calls of ``model.generate`` with a drafter, for the tests of the hook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine, remote_speculative
from draftwire.transport.tcp import Address
from draftwire.verifier.local import LocalDrafter
from testing.harness.servers import serving
from testing.harness.tiny_models import tiny_llama, tiny_tokenizer

V = 16
PROMPT = [3, 7, 2, 9, 3, 7]


def target_model() -> Any:
    return tiny_llama(V)


def local_drafter(target: Any, drafter: Any | None = None, *, vocab_size: int = V) -> LocalDrafter:
    """A drafter in this process behind the real messages; by default one unlike the target."""
    model = tiny_llama(V, layers=1, seed=4) if drafter is None else drafter
    tokenizer = tiny_tokenizer(vocab_size)
    engine = HfDraftEngine(model, tokenizer, identity=b"d" * 32)
    program = DrafterProgram(engine, DrafterConfig(max_support=min(256, vocab_size)))
    return LocalDrafter(program, HfTargetEngine(target, tokenizer, identity=b"t" * 32))


@contextmanager
def served(engine: HfDraftEngine) -> Iterator[Address]:
    """The drafter program on a real loopback socket, in a thread."""
    program = DrafterProgram(engine, DrafterConfig(max_support=engine.vocab_size))
    with serving(program) as server:
        yield server.address


def run(
    model: Any, prompts: Sequence[Sequence[int]], drafter: Any = None, **arguments: Any
) -> torch.Tensor:
    """Call generate as a script would, left-padded; a drafter adds the two arguments."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    if drafter is not None:
        arguments |= {"custom_generate": remote_speculative, "drafter": drafter}
    return model.generate(ids, attention_mask=mask, **arguments)


class AfterThree(StoppingCriteria):
    """Ends after three tokens, and writes down what it was shown."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        return torch.tensor([input_ids.shape[1] >= len(PROMPT) + 3])


class Written(BaseStreamer):
    """Keeps what was streamed."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.ids += value.reshape(-1).tolist()

    def end(self) -> None:
        self.ended += 1
