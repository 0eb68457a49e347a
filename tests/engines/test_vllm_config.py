"""What of the vLLM engine needs no vLLM: options, the range, the manners of the entry point."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire.engines.vllm.compatibility import is_supported
from draftwire.engines.vllm.config import PROPOSER, WORKER, Options
from draftwire.engines.vllm.policy import policy_of
from draftwire.errors import ConfigurationError
from draftwire.transport.tcp import Address
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_DEPTH, TICKETS, Layout


def engine(**more: Any) -> Any:
    """The parts of a VllmConfig that are read."""
    settings = {
        "method": "custom_class",
        "model": PROPOSER,
        "worker_cls": WORKER,
        "rejection_sample_method": "standard",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": None,
        "async_scheduling": False,
        "pipeline_parallel_size": 1,
        "skip_tokenizer_init": False,
        "additional_config": {},
        **more,
    }
    part = SimpleNamespace(**settings)
    return SimpleNamespace(
        speculative_config=part if settings["method"] else None,
        parallel_config=part,
        scheduler_config=part,
        model_config=part,
        additional_config=settings["additional_config"],
    )


def test_two_flags_are_enough() -> None:
    options = Options.of(engine())
    assert options == Options(5, Address("127.0.0.1", 7711), 0.25, Layout.SPARSE, 32, True)


def test_every_option_is_read() -> None:
    given = {
        "address": "[::1]:9",
        "deadline_ms": 40,
        "layout": "dense",
        "audit": False,
        "draft_identity": "ab" * 32,
    }
    options = Options.of(engine(additional_config={"draftwire": given, "other": 1}))
    assert options == Options(5, Address("::1", 9), 0.04, Layout.DENSE, 0, False, b"\xab" * 32)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "must be a JSON object"),
        ({"adress": "x:1"}, "has no 'adress': it takes address"),
        ({"address": 7}, "must be a string HOST:PORT"),
        ({"address": "nowhere"}, "no HOST:PORT"),
        ({"address": "here:0"}, "must name the drafter's port"),
        ({"deadline_ms": True}, "finite number above 0"),
        ({"deadline_ms": -1}, "finite number above 0"),
        ({"deadline_ms": float("nan")}, "finite number above 0"),
        ({"layout": "sparse:0"}, "K at least 1"),
        ({"layout": "packed"}, "K at least 1"),
        ({"audit": 1}, "true or false"),
        ({"draft_identity": "ab"}, "64 hexadecimal digits"),
        ({"draft_identity": 3}, "64 hexadecimal digits"),
    ],
)
def test_wrong_options_are_named_with_what_they_may_be(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Options.parse(given, depth=3)


@pytest.mark.parametrize("depth", [0, MAX_DEPTH + 1])
def test_depths_that_the_wire_does_not_carry_are_refused(depth: int) -> None:
    with pytest.raises(ConfigurationError, match="num_speculative_tokens must be between 1 and"):
        Options.parse({}, depth=depth)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"method": None}, "add --speculative-config"),
        ({"model": "other.Proposer"}, "add --speculative-config"),
        ({"worker_cls": "auto"}, f"add --worker-cls {WORKER}"),
        ({"async_scheduling": True}, "leave --async-scheduling away"),
        ({"pipeline_parallel_size": 2}, "set --pipeline-parallel-size 1"),
        ({"skip_tokenizer_init": True}, "leave --skip-tokenizer-init away"),
        ({"rejection_sample_method": "block"}, 'leave "rejection_sample_method" away'),
        ({"num_speculative_tokens_per_batch_size": {1: 2}}, "the depth is fixed before the draw"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Options.of(engine(**changed))


def test_the_supported_range() -> None:
    assert [is_supported(v) for v in ("0.32.0", "0.32.0+cpu", "0.32.5")] == [True] * 3
    assert [is_supported(v) for v in ("0.31.9", "0.33.0", "1.0", "dev", "")] == [False] * 5


def sampling(**more: Any) -> Any:
    return SimpleNamespace(**{"temperature": 0.7, "top_k": 0, "top_p": 1.0, **more})


def test_q_takes_after_the_request() -> None:
    options = Options.parse({}, depth=5)
    assert policy_of(sampling(temperature=0.0), options, 100, 4) == ProposalPolicy(
        Layout.SPARSE, 4, 0.0, support=1
    )
    warm = policy_of(sampling(top_k=7, top_p=0.5), options, 100, 3)
    assert (warm.depth, warm.support, warm.top_k, warm.top_p) == (3, 32, 7, TICKETS // 2)
    assert policy_of(sampling(top_k=100), options, 8, 3).top_k == 0
    assert policy_of(sampling(temperature=2e-5), options, 8, 3).temperature == 2.0**-14


def test_the_entry_point_imports_neither_vllm_nor_torch_nor_numba() -> None:
    code = (
        "import sys\n"
        "from draftwire.engines.vllm.plugin import register\n"
        "register(); register()\n"
        "print([name for name in ('vllm', 'torch', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
