"""The trainer of the embedded DSpark drafter: what a row sees, learns from, and is saved as."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from draftwire.engines.dspark.backbone import BlockDrafter
from draftwire.engines.dspark.checkpoint import read_block_drafter
from testing.harness.tiny_models import tiny_llama
from tools.embedded_pair import dspark_head as trainer
from tools.embedded_pair.own_text import OwnText
from tools.embedded_pair.vocabulary import VOCABULARY_SIZE

LENGTH = 24
V = 29


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "TARGET_LAYERS", (0, 2))
    monkeypatch.setattr(trainer, "RANK", 8)


def head_of_tiny() -> BlockDrafter:
    torch.manual_seed(0)
    return trainer.new_head(tiny_llama(V, layers=4).float())


def test_a_row_sees_the_states_before_its_anchor_and_its_own_block() -> None:
    mask = trainer.mask_of(torch.tensor([[3, 1]]), LENGTH)[0, 0]
    size = trainer.BLOCK
    assert mask.shape == (2 * size, LENGTH + 2 * size)
    for block, anchor in enumerate((3, 1)):
        for row in range(block * size, (block + 1) * size):
            own = range(LENGTH + block * size, LENGTH + (block + 1) * size)
            assert set(mask[row].nonzero().flatten().tolist()) == {*range(anchor), *own}


def test_rows_in_a_batch_of_blocks_are_those_of_each_block_alone(small: None) -> None:
    """Nothing of the text at or behind an anchor is seen by its rows, but the text's own tokens."""
    head = head_of_tiny()
    tokens = torch.randint(0, V, (2, LENGTH))
    states = torch.randn(2, LENGTH, 2 * head.shape.target_width)
    anchors = torch.tensor([[2, 9], [15, 4]])
    made, sure = trainer.drafted(head, tokens, states, anchors)
    for row in range(2):
        for block in range(2):
            at = int(anchors[row, block])
            later = states[row : row + 1].clone()
            later[:, at:] = 99.0
            alone, alike = trainer.drafted(
                head, tokens[row : row + 1], later, anchors[row : row + 1, block : block + 1]
            )
            rows = slice(block * trainer.BLOCK, (block + 1) * trainer.BLOCK)
            assert (made[row, rows] - alone[0]).abs().max() < 1e-5
            assert (sure[row, rows] - alike[0]).abs().max() < 1e-5


def test_row_k_learns_the_token_k_and_one_behind_the_anchor() -> None:
    values = torch.arange(LENGTH)[None]
    found = trainer.rows_behind(values, torch.tensor([[3, 10]]))
    assert found.tolist() == [[3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15]]


def test_a_periodic_text_is_learnt_to_its_last_draft(
    small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Were a row read off by one, its draft would be the token before, and never accepted (M26)."""
    target = tiny_llama(V, layers=4).float()
    rows = (np.arange(LENGTH)[None] + np.arange(96)[:, None]) % 7 + 3
    logits = np.full((96, LENGTH, V), -9.0, np.float16)
    following = (rows - 3 + 1) % 7 + 3
    np.put_along_axis(logits, following[..., None], np.float16(9.0), 2)
    text = OwnText(rows.astype(np.int16), logits)
    monkeypatch.setattr(trainer.own_text, "LENGTH", LENGTH)
    monkeypatch.setattr(trainer.own_text, "PROMPT", 8)
    states = trainer.states_of(target, text.tokens, tmp_path / "states.f16")
    head = head_of_tiny()
    trainer.train(head, text, states, 8.0, 1, tmp_path)
    reached = trainer.tokens_of_a_pass(head, text, states, np.arange(16))
    assert reached[1.0] > 5.5  # six, were every draft accepted


def test_what_is_saved_is_read_strictly(small: None, tmp_path: Path) -> None:
    head = head_of_tiny()
    trainer.keep(head, tmp_path)
    config = trainer.config_of(tiny_llama(V, layers=4))
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = read_block_drafter(tmp_path)
    for name, values in head.state_dict().items():
        assert torch.equal(found.state_dict()[name], values.half().float()), name
    assert VOCABULARY_SIZE == 3072
