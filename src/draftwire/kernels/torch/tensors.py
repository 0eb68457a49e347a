"""Arrays of the host and tensors of a device: the one place where anything crosses between them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwire.errors import ArithmeticRefusalError, ConfigurationError, RefusalCode
from draftwire.wire.registry import MAX_VOCABULARY

_FORMATS: Final = (torch.float32, torch.bfloat16, torch.float16)


class Transfer:
    """Copies between the host and one device. bytes_to_host: all that has been read from it.

    Errors: ConfigurationError for a device that is not there.
    """

    def __init__(self, device: str) -> None:
        """Find the device, as torch names it."""
        try:
            self.device = torch.empty(0, device=device).device
        except Exception as error:  # RuntimeError, AssertionError, NotImplementedError, ...
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            why = (
                "" if "device string" in reason else f" ({reason})"
            )  # it lists all that torch knows
            raise ConfigurationError(
                f"torch has no device {device!r} here{why}: cpu always works, and cuda, cuda:1, xpu"
                " or mps where the machine and torch's build have it"
            ) from None
        self.bytes_to_host = 0

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """A tensor of the array's values on the device; on the CPU it may share their memory."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def to_host(self, tensor: Tensor) -> NDArray[Any]:
        """An array of the tensor's values; narrower floats widen. Waits for the device."""
        if tensor.is_floating_point() and tensor.dtype.itemsize < 4:
            tensor = tensor.to(torch.float32)
        array: NDArray[Any] = tensor.detach().cpu().numpy()
        self.bytes_to_host += array.nbytes
        return array


def tensor_of(array: Any) -> Tensor:
    """A tensor that shares the memory of an array or a tensor, and records no gradient."""
    return array.detach() if isinstance(array, Tensor) else torch.from_numpy(array)


def check_rows(rows: Tensor) -> None:
    """Refuse what is not (N, V) logits in binary32 or narrower, 1 <= V <= 2^24 (OUT_OF_RANGE)."""
    fits = rows.dtype in _FORMATS and rows.ndim == 2
    if not fits or not 1 <= rows.shape[-1] <= MAX_VOCABULARY:
        raise ArithmeticRefusalError(
            RefusalCode.OUT_OF_RANGE,
            f"logits must be binary32 or narrower (N, V), not {rows.dtype} {tuple(rows.shape)}",
        )
