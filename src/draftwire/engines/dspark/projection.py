"""A block drafter's projection of states, applied beside the target: fewer bytes travel (P36)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from draftwire.engines.dspark.checkpoint import weight_files
from draftwire.engines.dspark.formats import described, read_config
from draftwire.errors import ConfigurationError, ModelError
from draftwire.rows.states import projection_digest

_PROJECTION, _SCALE = "fc.weight", "hidden_norm.weight"


class StateProjection:
    """Implements :class:`draftwire.verifier.states.Projection`, as ``BlockDrafter.fuse`` does.

    digest: SHA-256 of its weights, which the drafter's must equal.
    """

    def __init__(self, weight: Tensor, scale: Tensor, eps: float, *, device: str = "cpu") -> None:
        """Take the projection (d, n x d), the scale (d,) of the norm behind it, and its epsilon."""
        self.digest = projection_digest(*(each.float().numpy() for each in (weight, scale)))
        kind = torch.float32 if device == "cpu" else weight.dtype
        self._weight = weight.to(device, kind)
        self._norm = Qwen3RMSNorm(len(scale), eps=eps)
        self._norm.weight = torch.nn.Parameter(scale.to(device, kind), requires_grad=False)

    @classmethod
    def from_folder(cls, folder: str | Path, *, device: str = "cpu") -> StateProjection:
        """Read the two tensors of a drafter's folder. Raises ModelError and ConfigurationError."""
        folder = Path(folder)
        description = described(read_config(folder / "config.json"))
        if description is None:
            raise ModelError(f"{folder} holds no drafter that reads states of its target")
        shape = description.shape
        if shape.hidden_size != shape.target_width or len(shape.target_layers) < 2:
            raise ConfigurationError(
                f"the states of the drafter in {folder} travel as they are: its projection of"
                f" {len(shape.target_layers)} x {shape.target_width} elements to"
                f" {shape.hidden_size} saves nothing, or makes rows of another width"
            )
        found: dict[str, Tensor] = {}
        for file in weight_files(folder):
            try:
                with safe_open(file, framework="pt") as opened:
                    for name in opened.keys():  # noqa: SIM118 - not a dict
                        if description.renamed(name) in (_PROJECTION, _SCALE):
                            found[description.renamed(name)] = opened.get_tensor(name)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file} cannot be read: {error}") from error
        width = shape.hidden_size
        due = {_PROJECTION: (width, len(shape.target_layers) * width), _SCALE: (width,)}
        for name, size in due.items():
            if name not in found or tuple(found[name].shape) != size:
                raise ModelError(f"{folder} has no {name} of {size}")
        eps = float(shape.config.get("rms_norm_eps", 1e-6))
        return cls(found[_PROJECTION], found[_SCALE], eps, device=device)

    @torch.inference_mode()
    def fuse(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (R, d) of (R, n x d)."""
        given = torch.from_numpy(rows).to(self._weight.device, self._weight.dtype)
        fused: NDArray[np.float32] = self._norm(given @ self._weight.T).float().cpu().numpy()
        return fused
