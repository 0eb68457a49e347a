"""Kernels are made ready before the first round: nothing compiles or loads inside one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels import prepare as preparing
from draftwire.kernels.prepare import policies_of, prepare_kernels, run_through
from draftwire.kernels.protocol import Kernels, Round
from draftwire.kernels.registry import kernels_for
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, V2_LAYOUTS, Layout, LayoutSet

ROOT = Path(__file__).parents[2]
WIDTH, SUPPORT = 24, 4
LAYOUTS = (LayoutSet.IDS_ONLY, LayoutSet.DENSE, LayoutSet.SPARSE, V2_LAYOUTS)


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_policies_stand_for_every_way_that_proposals_are_computed(layouts: LayoutSet) -> None:
    for width in (2, 5, WIDTH):
        policies = policies_of(layouts, SUPPORT, width)
        assert {LayoutSet(1 << each.layout) for each in policies} == set(layouts)
        assert all(0 <= each.support <= width for each in policies)
        sampled = [each for each in policies if each.temperature]
        assert bool(sampled) is (layouts is not LayoutSet.IDS_ONLY)
        run_through(kernels_for("cpu", "cpu"), policies, width)  # each is a policy of this width


def rounds_of(kernels: Kernels[Any], count: int, policy: ProposalPolicy) -> None:
    """What ``count`` requests of one draft each do in a round."""
    rng = np.random.default_rng(count)
    scores = rng.normal(size=(2 * count, WIDTH)).astype(np.float32)
    q, status = kernels.quantise(kernels.from_host(scores[:count].copy()), policy)
    assert not np.asarray(status).any()
    tokens = kernels.draw(q, rng.integers(0, TOTAL, count))
    words, rows = KeyedWords(RequestKey(1)), kernels.host_rows(q)
    for greedy in (False, True):
        rounds = [
            Round((int(tokens[at]),), (rows[at],), 2 * at, 2, words, 1, 1, at, greedy)
            for at in range(count)
        ]
        verdicts = kernels.verify(kernels.from_host(scores), rounds)
        assert all(each.token is not None for each in verdicts)


def test_triton_launches_in_a_round_what_it_launched_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    from draftwire.kernels.triton import tiles
    from draftwire.kernels.triton.kernels import TritonKernels

    launched: set[Any] = set()
    launch = tiles.launch

    def kind(value: Any) -> Any:
        # What Triton compiles a kernel for: a number's being 1 or a multiple of 16, types.
        if isinstance(value, int):
            return "one" if value == 1 else "16" if value % 16 == 0 else "other"
        return str(getattr(value, "dtype", type(value)))

    def recorded(kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        launched.add((id(kernel), tuple(map(kind, arguments)), tuple(sorted(constants.items()))))
        launch(kernel, grid, *arguments, **constants)

    for name, module in list(sys.modules.items()):
        if name.startswith("draftwire.kernels.triton") and hasattr(module, "launch"):
            monkeypatch.setattr(module, "launch", recorded)
    # Sixteen rows take the interpreter minutes; one and two stand for the others.
    monkeypatch.setattr(preparing, "ROW_COUNTS", (1, 2))
    kernels = TritonKernels("cpu", tiles.Tiling(rows=1, block=16, digit=4))  # a row a tile
    policies = policies_of(LayoutSet.SPARSE, SUPPORT, WIDTH)
    kernels.prepare(policies, WIDTH)
    before = set(launched)
    assert len(before) > 20
    for count in (1, 2):
        for policy in policies:
            rounds_of(kernels, count, policy)
    assert launched == before


SCRIPT = """
import sys
import numba
from draftwire.wire.registry import V2_LAYOUTS
from draftwire.kernels.prepare import policies_of, prepare_kernels
from draftwire.kernels.registry import kernels_for
from draftwire.rows.prepare import prepare

def compiled():
    return {
        (module, name): len(loop.signatures)
        for module, found in list(sys.modules.items()) if module.startswith("draftwire.")
        for name, loop in vars(found).items() if hasattr(loop, "signatures")
    }

prepare()
prepare_kernels(sys.argv[1], "cpu", V2_LAYOUTS, 4, 24)
before = compiled()
from tests.kernels.test_prepare import SUPPORT, WIDTH, rounds_of
for policy in policies_of(V2_LAYOUTS, SUPPORT, WIDTH):
    rounds_of(kernels_for(sys.argv[1], "cpu"), 3, policy)
assert before and all(before[each] == count for each, count in compiled().items() if each in before)
print("nothing compiled in a round,", sum(before.values()), "loops before")
"""


@pytest.mark.parametrize("choice", ["cpu", "torch"])
def test_no_loop_compiles_in_a_round(choice: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, choice], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    assert "nothing compiled in a round" in ran.stdout


def test_preparing_is_done_once_for_a_device() -> None:
    prepare_kernels("cpu", "cpu", V2_LAYOUTS, SUPPORT, WIDTH)
    hits = prepare_kernels.cache_info().hits
    prepare_kernels("cpu", "cpu", V2_LAYOUTS, SUPPORT, WIDTH)
    assert prepare_kernels.cache_info().hits == hits + 1
    assert Layout.DENSE in {each.layout for each in policies_of(V2_LAYOUTS, SUPPORT, WIDTH)}
