"""Every implementation on the CPU, Triton's kernels under its interpreter."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

from draftwire.kernels.cpu.kernels import CpuKernels
from draftwire.kernels.torch.kernels import TorchKernels
from draftwire.kernels.triton.kernels import TritonKernels
from draftwire.kernels.triton.tiles import Tiling

torch.set_num_threads(1)

CPU = CpuKernels()
TORCH = TorchKernels()  # row by row
DEVICE = TorchKernels(by_row=False)  # what torch does on a GPU, here on the CPU
TRITON = TritonKernels()
BLOCKS_OF_16 = TritonKernels(tiling=Tiling(block=16))  # several blocks a row at small V
EVERY = (CPU, TORCH, DEVICE, TRITON, BLOCKS_OF_16)
NAMES = ("cpu", "torch by row", "torch as on a device", "triton", "triton in blocks of 16")
