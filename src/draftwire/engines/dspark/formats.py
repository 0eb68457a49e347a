"""What the config.json of each format says, as one description.

DeepSpec (architectures ``Qwen3DSparkModel``): the target's text config and the drafter's fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from draftwire.engines.dspark.shape import DraftShape, MarkovKind
from draftwire.errors import ModelError

_LAYER_FIELDS: Final = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "max_position_embeddings",
    "attention_bias",
    "hidden_act",
)
"""What a Qwen3 layer is made by."""


@dataclass(frozen=True, slots=True)
class Description:
    """A drafter's shape, and how its tensors are called.

    prefixes: of a name, to what stands in its place here. from_target: names here to the ends of
    names in the target's checkpoint, of tensors that the drafter may leave there. tied: the head is
    the embedding where it is not stored.
    """

    shape: DraftShape
    prefixes: Mapping[str, str] = field(default_factory=dict)
    from_target: Mapping[str, str] = field(default_factory=dict)
    tied: bool = False

    def renamed(self, name: str) -> str:
        """Return the name of a stored tensor as it is here."""
        for prefix, ours in self.prefixes.items():
            if name.startswith(prefix):
                return ours + name.removeprefix(prefix)
        return name


def is_block_drafter(folder: str | Path) -> bool:
    """Whether a folder's config.json is that of a block drafter, of a format that is known."""
    path = Path(folder, "config.json")
    return path.is_file() and any(recognised(read_config(path)) for recognised, _ in _FORMATS)


def read_config(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raises ModelError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is no JSON object")
    return found


def described(config: Mapping[str, Any]) -> Description | None:
    """Return what a config.json describes, None where it is no block drafter's.

    Raises ModelError for one of a known format that misses a field or has what is not supported.
    """
    for recognised, read in _FORMATS:
        if recognised(config):
            return read(config)
    return None


def _is_deepspec(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures")
    return isinstance(names, list) and bool({"Qwen3DSparkModel", "Gemma4DSparkModel"} & {*names})


def _deepspec(config: Mapping[str, Any]) -> Description:
    if "Gemma4DSparkModel" in config["architectures"]:
        raise ModelError(
            "a DSpark drafter for Gemma 4 is not supported: only those of Qwen3's kind"
        )
    rank = whole(config, "markov_rank", 0)
    confidence = bool(_required(config, "enable_confidence_head"))
    kinds = config.get("layer_types") or []
    if any(each != "full_attention" for each in kinds):
        raise ModelError("config.json: layer_types other than full_attention are not supported")
    return Description(
        DraftShape(
            vocab_size=whole(config, "vocab_size", 1),
            hidden_size=whole(config, "hidden_size", 1),
            target_layers=layer_numbers(config, "target_layer_ids"),
            target_width=whole(config, "hidden_size", 1),
            block_size=whole(config, "block_size", 1),
            mask_token=whole(config, "mask_token_id", 0),
            max_context=whole(config, "max_position_embeddings", 2),
            markov_kind=_markov_kind(config) if rank else MarkovKind.NONE,
            markov_rank=rank,
            confidence=confidence,
            confidence_reads_markov=confidence
            and bool(_required(config, "confidence_head_with_markov")),
            config=layer_config(config),
        ),
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def layer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a layer is made by; rope parameters in the form of transformers 5."""
    made = {name: config[name] for name in _LAYER_FIELDS if name in config}
    if "rope_parameters" not in made:
        scaling = config.get("rope_scaling") or {"rope_type": "default"}
        made["rope_parameters"] = {**scaling, "rope_theta": _required(config, "rope_theta")}
    for name in ("intermediate_size", "num_hidden_layers", "num_attention_heads"):
        whole(made, name, 1)
    return made


def _markov_kind(config: Mapping[str, Any]) -> MarkovKind:
    name = str(_required(config, "markov_head_type")).lower()
    known = {each.value: each for each in MarkovKind if each is not MarkovKind.NONE}
    if name not in known:
        _refuse("markov_head_type", f"{name!r} is none of {', '.join(known)}")
    return known[name]


def layer_numbers(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return rising numbers of the target's layers, at least one."""
    layers = _required(config, name)
    if not isinstance(layers, list) or not layers or not all(type(each) is int for each in layers):
        _refuse(name, "is no list of layers")
    if min(layers) < 0 or any(one >= other for one, other in pairwise(layers)):
        _refuse(name, f"{layers} do not rise from 0 on")
    return tuple(layers)


def whole(config: Mapping[str, Any], name: str, least: int) -> int:
    """Return a whole number of a config, at least ``least``; ModelError otherwise."""
    value = _required(config, name)
    if type(value) is not int or not least <= value < 1 << 31:
        _refuse(name, f"{value!r} is no whole number of {least} or more")
    return value


def _required(config: Mapping[str, Any], name: str) -> Any:
    if name not in config:
        _refuse(name, "is missing")
    return config[name]


def _refuse(name: str, message: str) -> NoReturn:
    raise ModelError(f"config.json: {name} {message}")


_FORMATS: Final[
    tuple[
        tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], Description]], ...
    ]
] = ((_is_deepspec, _deepspec),)
"""How a format is recognised, and read."""
