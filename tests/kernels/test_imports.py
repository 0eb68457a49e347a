"""What importing costs: the compiler comes with the CPU kernels and with nothing before them."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["draftwire", "draftwire.kernels", "draftwire.kernels.rows"])
def test_importing_does_not_load_the_compiler(package):
    script = f"import sys, {package}; sys.exit('numba' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
