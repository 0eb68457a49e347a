"""The kernels on torch tensors."""
