"""Every backend on the CPU, Triton's kernels under its interpreter."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

from draftwire.kernels.backend import load
from draftwire.kernels.torch.backend import TorchBackend
from draftwire.kernels.triton.backend import TritonBackend
from draftwire.kernels.triton.tiles import Tiling

torch.set_num_threads(1)

NUMPY = load("numpy")
TORCH = load("torch")
DEVICE = TorchBackend("cpu", by_row=False)  # what torch does on a GPU, here on the CPU
TRITON = load("triton")
BLOCKS_OF_16 = TritonBackend("cpu", Tiling(block=16))  # several blocks a row at small V
