"""The faults that are worked around are still there: a release without one makes its test fail.

Then the work-around is to be taken out, and its lines in ``docs/guides/vllm.md`` with it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from draftwire.engines.vllm import repairs

FRESH = """
import torch
from vllm.platforms import current_platform
current_platform.register_triton_kernel_overrides()
from draftwire.engines.vllm import repairs
print(repairs.{name}())
print(sorted(repairs.apply()))
print(repairs.{name}(), repairs.apply())
"""


@pytest.mark.parametrize("name", ["expansion_is_lost", "empty_top_k_fails"])
def test_the_fault_is_still_there_and_is_repaired_once(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRESH.format(name=name)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["True", "['empty top-k', 'expansion']", "False ()"]


def test_the_scan_for_kernels_still_stumbles_over_llvmlite() -> None:
    code = (
        "import numba, llvmlite.binding\n"
        "from draftwire.engines.vllm import repairs\n"
        "print(repairs.scan_fails(), repairs.apply_before_start(), repairs.scan_fails())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True ('scan',) False"


def test_values_reach_their_rows() -> None:
    values = torch.tensor([0.0, 0.5, 2.0])
    rows = repairs.expand_batch_to_tokens(values, torch.tensor([2, 2, 5]), 5, 0, 1)
    assert rows.tolist() == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert (
        repairs.expand_batch_to_tokens(values.int(), torch.tensor([1, 2, 3]), 3).dtype
        == torch.int32
    )
