"""The same steps over torch.distributed: two and four processes give what the emulator gives."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from draftwire.errors import ConfigurationError
from draftwire.kernels.shards.emulator import emulate
from tests.engines.rank_programs import lost_rank, ranks, sharded_arithmetic
from tests.engines.rank_rows import sharded_rows


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_over_gloo_equal_the_emulator_and_one_rank(size: int) -> None:
    whole = emulate([sharded_rows(0, 1)])[0]
    expected = emulate([sharded_rows(rank, size) for rank in range(size)])
    with ranks(sharded_arithmetic, size) as group:
        found = [group.hear(rank) for rank in range(size)]
    for policy in range(2):
        counts = np.concatenate([answer[0][policy] for answer in found], axis=1)
        np.testing.assert_array_equal(counts, whole[0][policy])
        for answer, emulated in zip(found, expected, strict=True):
            np.testing.assert_array_equal(answer[0][policy], emulated[0][policy])
            np.testing.assert_array_equal(answer[1][policy], whole[1][policy])
            assert answer[2][policy] == whole[2][policy]


def test_a_rank_that_dies_ends_the_collective_of_all_others() -> None:
    """Noticed by its closed connection, and not by any rank's own clock."""
    with ranks(lost_rank, 3) as group:
        assert [group.hear(rank) for rank in range(3)] == ["met"] * 3
        group.kill(2)
        assert [group.hear(rank) for rank in range(2)] == ["gone"] * 2


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up_after_the_patience() -> None:
    """Nothing is closed, and no rank waits longer than it was told."""
    patience = 15.0
    with ranks(lost_rank, 2, patience) as group:
        assert [group.hear(rank) for rank in range(2)] == ["met"] * 2
        with group.stopped(1):
            began = time.monotonic()
            assert group.hear(0) == "gone"
            assert time.monotonic() - began > patience / 2


def test_each_rank_over_nccl_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs that need not be there: NCCL refuses one GPU for two ranks."""
    from draftwire.engines.parallel.group import claim_gpu

    taken: list[str] = []
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    assert [claim_gpu(rank, "cuda") for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert claim_gpu(0, "cuda:1") == "cuda:1"
    assert taken == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]


def test_groups_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwire.engines.parallel.group import join

    with pytest.raises(ConfigurationError, match="one of gloo, nccl"):
        join(0, 1, "127.0.0.1:1", backend="mpi")
    with monkeypatch.context() as without:
        without.setattr("torch.cuda.device_count", lambda: 0)
        with pytest.raises(ConfigurationError, match="nccl needs a GPU"):
            join(0, 1, "127.0.0.1:1", backend="nccl")
    with pytest.raises(ConfigurationError, match="no rank 2 of 2"):
        join(2, 2, "127.0.0.1:1")


def test_the_package_of_ranks_imports_no_torch() -> None:
    code = "import sys, draftwire.engines.parallel, draftwire.kernels.shards.emulator;"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
