"""The Triton kernels compile for a GPU, without one; and nothing in them is contracted."""

import json
import os
import subprocess
import sys
from pathlib import Path

KERNELS = Path(__file__).parent / "compiled_kernels.py"
IN_BINARY64 = {
    "weigh_kernel",
    "floor_counts_kernel",
    "mass_kernel",
    "residual_kernel",
    "find_kernel",
}
EXPONENTIAL = IN_BINARY64 - {"floor_counts_kernel"}


def test_every_kernel_compiles_for_hopper_without_contraction():
    """To PTX and machine code by the compiler that Triton brings: sm_90, at V = 1 and at real V."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, str(KERNELS), "90"], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert len(found) == 21
    for name, counts in found.items():
        assert counts["contracted"] == 0, name
        # Nothing is computed in binary32: a float argument or constant would have crept in.
        assert counts["binary32"] == 0, name
        assert (counts["products"] > 0) == (name in IN_BINARY64), name
        assert counts["exponential"] == (name in EXPONENTIAL), name
