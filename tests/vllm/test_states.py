"""vLLM's auxiliary states reach a drafter that reads them (case M13): the committed text's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from draftwire.wire.registry import HiddenDtype
from draftwire.wire.states import StateFormat
from testing.toys.models import ToyContext, ToyDrafter
from tests.vllm.engines import (
    remote_arguments,
    running,
    serving,
    speculation_of,
    texts,
    toy_drafter,
)
from tests.vllm.models import tiny_folder
from tests.vllm.test_requests import seeded

LAYERS = (0, 1)
WIDTH = 64


@dataclass
class Reading(ToyDrafter):
    """Keeps what every session has read, and the longest text that it was fed with it."""

    rows: dict[int, dict[int, np.ndarray]] = field(default_factory=dict)
    fed: dict[int, list[int]] = field(default_factory=dict)
    layers: tuple[int, ...] = LAYERS

    @property
    def state_format(self) -> StateFormat:
        return StateFormat(self.layers, WIDTH, HiddenDtype.FLOAT32)

    def fuse(self, rows: np.ndarray) -> np.ndarray:
        raise NotImplementedError("rows are raw here")

    def truncate(self, context: ToyContext, length: int) -> None:
        if context.length:
            self.fed[id(context)] = list(context.tokens)
        super().truncate(context, length)

    def take_states(self, context: ToyContext, first: int, rows: np.ndarray) -> None:
        held = self.rows.setdefault(id(context), {})
        held.update(zip(range(first, first + len(rows)), rows, strict=True))
        self.keep.append(context)

    keep: list[ToyContext] = field(default_factory=list)  # no id is used twice

    def states_held(self, context: ToyContext) -> int:
        held = self.rows.get(id(context), {})
        return next(at for at in range(len(held) + 1) if at not in held)


@dataclass
class Bench:
    engine: Any
    drafter: Reading
    model: Any


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder: Path = tiny_folder(tmp_path_factory.mktemp("states") / "target", seed=1, layers=3)
    plain = toy_drafter(folder)
    drafter = Reading(
        plain.table,
        plain.vocab_size,
        tokenizer_hash=plain.tokenizer_hash,
        id_map_hash=plain.id_map_hash,
    )
    with (
        serving(drafter) as address,
        running(
            folder,
            **remote_arguments(address, deadline_ms=20_000, layout="sparse:8", breaker=False),
            block_size=32,
            max_num_batched_tokens=64,
            max_num_seqs=8,
        ) as engine,
    ):
        yield Bench(engine, drafter, LlamaForCausalLM.from_pretrained(folder).eval())


def due(model: Any, ids: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        given = model(input_ids=torch.tensor([list(ids)]), output_hidden_states=True)
    return torch.cat([given.hidden_states[each + 1][0] for each in LAYERS], -1).float().numpy()


def held_against(bench: Bench, whole: Sequence[Sequence[int]]) -> list[int]:
    """Hold every session's rows against its text's; returns their first positions."""
    found = []
    for rows in bench.drafter.rows.values():
        positions = sorted(rows)
        assert positions == list(range(positions[0], positions[-1] + 1))
        read = np.stack([rows[at] for at in positions])
        longer = [text for text in whole if len(text) > positions[-1]]
        near = {"rtol": 0.02, "atol": 0.02}  # bfloat16 on the wire
        assert any(np.allclose(read, due(bench.model, text)[positions], **near) for text in longer)
        found.append(positions[0])
    return found


def run(bench: Bench, prompts: Sequence[Sequence[int]], tokens: int = 20) -> list[list[int]]:
    bench.drafter.rows.clear()
    asked = [seeded(row, max_tokens=tokens, ignore_eos=True) for row in range(len(prompts))]
    made = texts(bench.engine, prompts, asked)
    return [[*prompt, *text] for prompt, text in zip(prompts, made, strict=True)]


def test_the_states_of_the_committed_text_are_read(bench: Bench) -> None:
    assert speculation_of(bench.engine).client.agreed.states == StateFormat(
        LAYERS, WIDTH, HiddenDtype.BFLOAT16
    )
    whole = run(bench, [(3, 4, 2, 5, 6)])
    assert held_against(bench, whole) == [0]
    (rows,) = bench.drafter.rows.values()
    assert max(rows) > 15


def test_prompts_in_chunks_and_several_requests_are_told_apart(bench: Bench) -> None:
    prompts = [tuple((row + 2 * place) % 8 for place in range(30)) for row in range(5)]
    whole = run(bench, prompts, 12)
    assert held_against(bench, whole) == [0] * 5


def test_what_the_prefix_cache_gives_has_no_states(bench: Bench) -> None:
    prompt = tuple((3 * place + place // 7) % 8 for place in range(45))
    run(bench, [prompt], 8)
    whole = run(bench, [prompt], 8)
    assert held_against(bench, whole) == [32]


def test_nothing_is_kept_of_requests_that_are_over(bench: Bench) -> None:
    run(bench, [(3, 4), (5, 6)])
    run(bench, [(3,)], 2)
    states = speculation_of(bench.engine).states
    assert len(states.requests) <= 1
