"""Faults on purpose: the matrix and the stalls (`make faults`), and the soak (`make soak`)."""
