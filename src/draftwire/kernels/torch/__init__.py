"""The kernels on torch tensors, wherever they lie."""
