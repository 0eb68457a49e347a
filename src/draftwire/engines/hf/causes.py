"""Why a model's numbers are not those that the law needs, as far as its structure tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from draftwire.engines.hf.rope import rope_border

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_PLAIN: Final = ("input_ids", "attention_mask", "use_cache", "return_dict", "logits_to_keep")
_CACHES: Final = ("cache", "past_key_values", "cache_params", "mems")


def has_experts(model: Any) -> bool:
    """Whether the tokens of a pass are sent to experts, whose products then have other shapes."""
    config = model.config.get_text_config(decoder=True)
    return any((getattr(config, name, None) or 0) > 1 for name in _EXPERTS)


def of_tails(model: Any) -> str:
    """Return why rows may depend on later tokens of their pass."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._NormBase):
            return f"{name} takes statistics over a pass"
        if "quant" in type(module).__module__:
            return f"{name}, quantised, takes its scale over all rows of a pass"
    border = rope_border(model)
    if border is not None:
        return f"rope type {border.kind} switches at {border.length} tokens"
    if getattr(model.config, "is_decoder", True) is False:
        return "its attention is not causal (set is_decoder=True in its configuration)"
    if has_experts(model):
        return "its experts are chosen or filled over a pass as a whole"
    return "the cause is not known (attention that is not causal, or scales over a whole pass)"


def of_passes(model: Any, held: Sequence[int], fed: int) -> str:
    """Return why rows may depend on how a text is cut. held: positions in each layer's cache."""
    if not held:
        return f"its cache holds none of the {fed} positions that were fed: it has no cache of keys"
    if min(held) < fed:
        return f"its cache holds {min(held)} of the {fed} positions that were fed"
    found = of_tails(model)
    return found if "not known" not in found else "the cause is not known"


def of_generate(inputs: Mapping[str, Any]) -> str:
    """Return what ``generate`` passes and a plain pass does not. inputs: of its first pass."""
    positions = inputs.get("position_ids")
    other = [
        name
        for name, value in inputs.items()
        if value is not None and name not in (*_PLAIN, *_CACHES, "position_ids")
    ]
    if other:
        return f"generate prepares {', '.join(sorted(other))}"
    if positions is not None and positions.numel() and int(positions.flatten()[0]):
        return f"generate passes position_ids from {int(positions.flatten()[0])}"
    return "the cause is not known"
