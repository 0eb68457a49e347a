"""Which kernels compute: by a choice, and by where the scores lie; imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from draftwire.errors import ConfigurationError
from draftwire.kernels.protocol import Kernels

CHOICES: Final = ("auto", "cpu", "torch", "triton")
_MODULES: Final = {
    "cpu": ("draftwire.kernels.cpu.kernels", "CpuKernels"),
    "torch": ("draftwire.kernels.torch.kernels", "TorchKernels"),
    "triton": ("draftwire.kernels.triton.kernels", "TritonKernels"),
}
_WAYS_OUT: Final = {
    "torch": "pip install 'draftwire[hf]'",
    "triton": "pip install 'draftwire[triton]'",
}
_WITHOUT_FLOAT64: Final = ("mps",)
_made: dict[tuple[str, str], Kernels[Any]] = {}


def kernels_for(choice: str, where: Any) -> Kernels[Any]:
    """The kernels of a choice for a device; made once for each device.

    choice: one of CHOICES. where: an array, or a device as torch names it. ``auto``: on the host
    ``cpu``; on a GPU ``triton`` where it is installed, else ``torch``; on a device without binary64
    ``cpu``, which copies the rows to the host. ``triton`` computes on a GPU, or on the CPU under
    its interpreter (TRITON_INTERPRET=1 before Triton is imported). Errors: ConfigurationError for
    another choice, a library that is missing, a device that is not there.
    """
    if choice not in CHOICES:
        raise ConfigurationError(f"there are no kernels {choice!r}: one of {', '.join(CHOICES)}")
    device = str(getattr(where, "device", where))
    kind = device.split(":")[0]
    if kind in _WITHOUT_FLOAT64 or (choice == "auto" and kind == "cpu"):
        choice = "cpu"
    if choice == "auto":
        try:
            return _of("triton", device)
        except ConfigurationError:
            choice = "torch"
    return _of(choice, device)


def _of(name: str, device: str) -> Kernels[Any]:
    if (name, device) not in _made:
        _made[name, device] = _load(name, device)
    return _made[name, device]


def _load(name: str, device: str) -> Kernels[Any]:
    module, class_name = _MODULES[name]
    try:
        kernels = getattr(import_module(module), class_name)
    except ModuleNotFoundError as missing:
        library = (missing.name or "").split(".")[0]
        if library not in _WAYS_OUT:
            raise
        raise ConfigurationError(
            f"the {name} kernels need {missing.name}: {_WAYS_OUT[library]}"
        ) from None
    made: Kernels[Any] = kernels(device)
    return made
