"""Settings of every test process."""

import os

# Triton asks once, when it is imported: here its kernels run on the CPU. `make gpu` says 0.
os.environ.setdefault("TRITON_INTERPRET", "1")
