"""A block drafter fed with a transformers target's states over the wire, raw and fused (M13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.dspark.engine import BlockDraftEngine
from draftwire.engines.dspark.projection import StateProjection
from draftwire.engines.hf import HfTargetEngine
from draftwire.errors import ConfigurationError, ModelError
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import HiddenDtype, Layout
from testing.harness.tiny_models import tiny_llama, tiny_tokenizer
from testing.toys.block_drafters import DEEPSPEC, states_of, write_folder

V = 29
GOLDEN: dict[str, Any] = json.loads(
    Path(__file__).with_name("block_drafters.json").read_text(encoding="utf-8")
)
SHAPES = GOLDEN["deepspec vanilla"]["shapes"]
POLICY = ProposalPolicy(Layout.DENSE, 3, 1.0)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def folder_of(where: Path, **changes: Any) -> Path:
    return write_folder(where, {**DEEPSPEC, **changes}, SHAPES)


class Recording(BlockDraftEngine):
    """Keeps the logits of every pass, and the widths of the rows that it is given."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logits: list[torch.Tensor] = []
        self.widths: set[int] = set()

    def forward(self, batch: Any) -> torch.Tensor:
        rows = super().forward(batch)
        self.logits.append(rows)
        return rows

    def take_states(self, context: Any, first: int, rows: Any) -> None:
        self.widths.add(rows.shape[1])
        super().take_states(context, first, rows)


def run(folder: Path, **options: Any) -> tuple[list[int], Recording, int]:
    """Write a text; returns its tokens, the drafter, and the bytes of states."""
    model = tiny_llama(V, layers=4)
    engine = Recording.from_folder(folder, tiny_tokenizer(V))
    assert isinstance(engine, Recording)
    ends = {"eos_token_id": None}
    target = HfTargetEngine(model, tiny_tokenizer(V), identity=b"t" * 32, options=ends)
    options = {"state_dtype": HiddenDtype.FLOAT32} | options
    with LocalDrafter(DrafterProgram(engine, DrafterConfig()), target, **options) as client:
        text = generate(target, client, PROMPT, Sampling(seed=4, max_tokens=30), POLICY)
        tokens = [each.token for each in text]
        assert not text.report.misses
        assert text.report.accepted > 0
        return tokens, engine, text.report.traffic.states


def test_the_drafter_computes_from_the_target_s_own_states(tmp_path: Path) -> None:
    """Its rows are those that it has beside the target, fed by hand."""
    folder = folder_of(tmp_path)
    tokens, engine, sent = run(folder)
    assert engine.widths == {2 * 16}
    assert sent > len(PROMPT) * 2 * 16 * 4
    whole = [*PROMPT, *tokens]
    with torch.inference_mode():
        given = tiny_llama(V, layers=4)(torch.tensor([whole]), output_hidden_states=True)
    rows = torch.cat([given.hidden_states[each + 1][0] for each in (0, 2)], -1).numpy()
    alone = BlockDraftEngine.from_folder(folder, tiny_tokenizer(V))
    found = 0
    for anchor in range(len(PROMPT) + 1, len(whole) - 1):
        context = alone.open()
        alone.truncate(context, 0)
        alone.take_states(context, 0, rows[:anchor])
        due = alone.forward([(context, whole[: anchor + 1])])
        found += any(torch.allclose(each, due, atol=1e-4) for each in engine.logits)
    rounds = len(engine.logits) / POLICY.depth
    assert found >= rounds / 2


def test_fused_rows_are_as_good_and_half_as_many_bytes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    raw_text, raw, raw_bytes = run(folder)
    projection = StateProjection.from_folder(folder)
    fused_text, fused, fused_bytes = run(folder, state_projection=projection)
    assert fused.widths == {16}
    assert fused_bytes * 2 == raw_bytes
    assert fused_text == raw_text
    assert len(fused.logits) == len(raw.logits)
    for ours, theirs in zip(fused.logits, raw.logits, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_projection_is_the_engine_s(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    engine = BlockDraftEngine.from_folder(folder, tiny_tokenizer(V))
    projection = StateProjection.from_folder(folder)
    assert projection.digest == engine.projection_digest
    rows = states_of(16)
    np.testing.assert_allclose(projection.fuse(rows), engine.fuse(rows), atol=1e-6)


def test_a_projection_of_another_drafter_is_named_at_connect(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    projection = StateProjection.from_folder(folder)
    projection.digest = b"x" * 32
    engine = BlockDraftEngine.from_folder(folder, tiny_tokenizer(V))
    target = HfTargetEngine(tiny_llama(V, layers=4), tiny_tokenizer(V), identity=b"t" * 32)
    program = DrafterProgram(engine, DrafterConfig())
    with (
        LocalDrafter(program, target, state_projection=projection) as client,
        pytest.raises(ConfigurationError, match="give the folder that the drafter serves"),
    ):
        client.connect()


def test_a_target_with_fewer_layers_is_named(tmp_path: Path) -> None:
    engine = BlockDraftEngine.from_folder(folder_of(tmp_path), tiny_tokenizer(V))
    target = HfTargetEngine(tiny_llama(V, layers=2), tiny_tokenizer(V), identity=b"t" * 32)
    with (
        LocalDrafter(DrafterProgram(engine, DrafterConfig()), target) as client,
        pytest.raises(ConfigurationError, match="reads layers 0, 2 of 16 elements; this target"),
    ):
        client.connect()


def test_a_folder_without_a_projection_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no drafter that reads states"):
        StateProjection.from_folder(tmp_path)
    one = folder_of(tmp_path / "one", target_layer_ids=[1])
    with pytest.raises(ConfigurationError, match="saves nothing"):
        StateProjection.from_folder(one)
    other = folder_of(tmp_path / "other", target_layer_ids=[0, 1, 2])
    with pytest.raises(ModelError, match=r"fc\.weight"):
        StateProjection.from_folder(other)
