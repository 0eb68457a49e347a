"""Block drafters on disk: config.json and safetensors, read strictly.

What is missing, unknown or of another shape is named: a drafter whose weights are not all there, or
not all used, accepts little and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftwire.engines.dspark.backbone import BlockDrafter
from draftwire.engines.dspark.formats import Description, described, read_config
from draftwire.errors import ModelError

_MOST_NAMED: Final = 4  # tensors in one sentence
_TIED: Final = {"lm_head.weight": "embed_tokens.weight"}


def read_block_drafter(
    folder: str | Path, *, target: str | Path | None = None, device: str = "cpu"
) -> BlockDrafter:
    """Return the drafter of a folder, binary32 on a CPU and as stored elsewhere, for inference.

    target: the folder of its target, for embeddings and head where the format leaves them there.
    Raises ModelError.
    """
    folder = Path(folder)
    description = described(read_config(folder / "config.json"))
    if description is None:
        raise ModelError(f"{folder} holds no DSpark or DFlash drafter that is known by its config")
    try:
        drafter = BlockDrafter(description.shape)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} describes no drafter: {error}") from error
    stored = dict(_tensors(folder, description))
    for name, other in _TIED.items():
        if description.tied and name not in stored and other in stored:
            stored[name] = stored[other]
    if target is not None:
        for name, values in _of_target(Path(target), description).items():
            stored.setdefault(name, values)
    _check(folder, drafter.state_dict(), stored, description)
    drafter.load_state_dict(stored, assign=True)
    drafter.to(device=device, dtype=torch.float32 if device == "cpu" else None)
    return drafter.requires_grad_(False).eval()


def _tensors(folder: Path, description: Description) -> Iterable[tuple[str, Tensor]]:
    """All tensors of a folder, under the names of :class:`BlockDrafter`."""
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dict
                    yield description.renamed(name), opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder, by its index where it has one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weights = read_config(index).get("weight_map")
        if not isinstance(weights, dict) or not all(isinstance(each, str) for each in weights):
            raise ModelError(f"{index} names no files")
        names = sorted(set(map(str, weights.values())))
        if any(Path(name).name != name for name in names):
            raise ModelError(f"{index} names a file outside its folder")
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no safetensors file")
    return files


def _of_target(folder: Path, description: Description) -> dict[str, Tensor]:
    """The tensors that a drafter takes from its target, found by how their names end."""
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dict
                    for ours, theirs in description.from_target.items():
                        if name == theirs or name.endswith("." + theirs):
                            found[ours] = opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error
    if "embed_tokens.weight" in found:  # of a target whose head is its embedding
        found.setdefault("lm_head.weight", found["embed_tokens.weight"])
    return {name: found[name] for name in description.from_target if name in found}


def _check(
    folder: Path,
    due: Mapping[str, Tensor],
    stored: Mapping[str, Tensor],
    description: Description,
) -> None:
    missing = [name for name in due if name not in stored]
    if missing and set(missing) <= set(description.from_target):
        raise ModelError(
            f"{folder} leaves {_named(missing)} to its target: name that one's folder"
            " (serve --target-weights FOLDER)"
        )
    unknown = [name for name in stored if name not in due]
    shapes = [
        f"{name} {tuple(stored[name].shape)} instead of {tuple(each.shape)}"
        for name, each in due.items()
        if name in stored and stored[name].shape != each.shape
    ]
    wrong = [
        f"{said} {_named(names)}"
        for said, names in (("misses", missing), ("also has", unknown), ("has", shapes))
        if names
    ]
    if wrong:
        raise ModelError(f"{folder} is not what its config.json describes: it {'; '.join(wrong)}")


def _named(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
