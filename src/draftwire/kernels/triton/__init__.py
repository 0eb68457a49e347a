"""The kernels in Triton, for GPUs."""
