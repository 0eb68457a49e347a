"""Write the logits that reference code gives for tiny block drafters: what ours is held to.

    python -m tools.block_goldens --deepspec CHECKOUT

CHECKOUT is one of github.com/deepseek-ai/DeepSpec (MIT); the files in the tests are of afdfa7c, run
with torch 2.13.0 and transformers 5.24.0. Nothing of it is needed to run the tests.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config

from testing.toys.block_drafters import DEEPSPEC, DRAFTS, TOKENS, states_of, values_of

KINDS = ("vanilla", "gated", "rnn")


def filled(model: Any) -> Any:
    """Give every parameter the values of its name."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(values_of(name, parameter.shape)))
    return model.eval()


@torch.no_grad()
def deepspec(kind: str) -> dict[str, Any]:
    """Logits and confidences of DeepSpec's Qwen3 DSpark with one kind of Markov head."""
    modeling = import_module("deepspec.modeling.dspark.qwen3.modeling")
    config = Qwen3Config(**{**DEEPSPEC, "markov_head_type": kind})
    config._attn_implementation = "eager"
    model = filled(modeling.Qwen3DSparkModel(config))
    anchor, size = len(TOKENS) - 1, DEEPSPEC["block_size"]
    tokens = torch.tensor([[TOKENS[-1], *[DEEPSPEC["mask_token_id"]] * (size - 1)]])
    hidden = model._forward_backbone(
        position_ids=torch.arange(anchor + size)[None],
        noise_embedding=model.embed_tokens(tokens),
        target_hidden_states=torch.from_numpy(states_of(DEEPSPEC["hidden_size"]))[None, :anchor],
        attention_mask=None,
    )
    before = torch.tensor([[TOKENS[-1], *DRAFTS]])
    logits = model.markov_head.apply_block_logits(
        model.compute_logits(hidden)[None], token_ids=before[None], hidden_states=hidden[None]
    )
    return {
        "logits": logits[0, 0].tolist(),
        "confidences": model.predict_confidence_step(hidden, before)[0].tolist(),
        "shapes": {name: list(each.shape) for name, each in model.named_parameters()},
    }


def main() -> None:
    """Write the file of the tests."""
    parser = argparse.ArgumentParser(prog="python -m tools.block_goldens")
    parser.add_argument("--deepspec", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("tests/engines/block_drafters.json"))
    options = parser.parse_args()
    sys.path.insert(0, str(options.deepspec))
    found = {f"deepspec {kind}": deepspec(kind) for kind in KINDS}
    options.output.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
