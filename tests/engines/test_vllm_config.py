"""What of the vLLM engine needs no vLLM: options, the range, what the entry point leaves alone."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire.engines.vllm import config
from draftwire.engines.vllm.compatibility import is_supported
from draftwire.engines.vllm.config import PROPOSER, WORKER, Options
from draftwire.engines.vllm.policy import check_depth, depth_of, policy_of
from draftwire.errors import ConfigurationError
from draftwire.session.slot_buffers import SlotPlan
from draftwire.transport.keys import PresharedKey, write_new_key
from draftwire.transport.tcp import Address
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import MAX_DEPTH, TOTAL, Layout
from testing.harness.certificates import fingerprint, tls_files


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
    assert options.breaker and not Options.parse({"breaker": False}, depth=3).breaker


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
        ({"derived_deadline": 1}, "derived_deadline must be true or false"),
        ({"slots": 4}, "slots must be an object"),
        ({"slots": {}}, "slots must be an object"),
        ({"slots": {"requests": 0}}, "each 1 or more"),
        ({"slots": {"requests": True}}, "each 1 or more"),
        ({"slots": {"depth": 3}}, "slots must be an object"),
        ({"breaker": "off"}, "breaker must be true or false"),
        ({"psk_file": 3}, "psk_file must be the path of a file"),
        ({"psk_file": ""}, "psk_file must be the path of a file"),
        ({"psk_file": "/nowhere/key"}, "the key file /nowhere/key cannot be read"),
        ({"psk_file": "k", "tls_ca": "c"}, "keep one of them"),
        ({"tls_cert": "c", "tls_key": "k"}, 'add "tls_ca"'),
        ({"tls_fingerprint": "ab"}, "64 hexadecimal digits"),
        ({"tls_fingerprint": 3}, "a SHA-256 or a list of them"),
        ({"tls_fingerprint": "ab" * 32}, 'add "tls_cert" and "tls_key" and "tls_ca"'),
        ({"tls_cert": "c", "tls_key": "/nowhere", "tls_ca": "a"}, "TLS key /nowhere cannot be"),
    ],
)
def test_wrong_options_are_named_with_what_they_may_be(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Options.parse(given, depth=3)


def test_slots_have_the_depth_of_the_configuration() -> None:
    assert Options.parse({}, depth=3).slots is None
    given = Options.parse({"slots": {"requests": 7}}, depth=3).slots
    assert given == SlotPlan(in_flight=1, requests=7, depth=3)
    given = Options.parse({"slots": {"in_flight": 2, "requests": 2}}, depth=4).slots
    assert given == SlotPlan(in_flight=2, requests=2, depth=4)


def test_a_key_that_others_may_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k"
    write_new_key(path)
    assert Options.parse({"psk_file": str(path)}, depth=3).security == PresharedKey.read(path)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Options.parse({"psk_file": str(path)}, depth=3)
    path.chmod(0o600)
    path.write_text("password")
    with pytest.raises(ConfigurationError, match="make one with draftwire keygen"):
        Options.parse({"psk_file": str(path)}, depth=3)


def test_certificates_become_a_security(tmp_path: Path) -> None:
    files = tls_files(tmp_path, "verifier", "authority", "drafter")
    given = {
        "tls_cert": str(files.certificate),
        "tls_key": str(files.key),
        "tls_ca": str(files.trusted),
        "tls_fingerprint": [fingerprint("drafter").hex(":")],
    }
    assert Options.parse(given, depth=3).security == files
    with pytest.raises(ConfigurationError, match="no certificate with its key"):
        Options.parse({**given, "tls_cert": str(files.trusted)}, depth=3)


def test_a_secret_shows_in_no_message(tmp_path: Path) -> None:
    path = tmp_path / "k"
    write_new_key(path)
    options = Options.parse({"psk_file": str(path)}, depth=3)
    assert path.read_text().strip() not in repr(options)


def test_logits_processors_that_vllm_would_leave_out_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = EntryPoint("bias", "somewhere:Bias", "vllm.logits_processors")
    monkeypatch.setattr(config, "entry_points", lambda group: [plugin])
    with pytest.raises(ConfigurationError, match="bias are installed: uninstall them"):
        Options.of(engine())


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
    return SimpleNamespace(**{"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **more})


def test_q_takes_after_the_request() -> None:
    options = Options.parse({}, depth=5)
    assert policy_of(sampling(temperature=0.0), options, 100, 4) == ProposalPolicy(
        Layout.SPARSE, 4, 0.0, support=1
    )
    warm = policy_of(sampling(top_k=7, top_p=0.5), options, 100, 3)
    assert (warm.depth, warm.support, warm.top_k, warm.top_p) == (3, 32, 7, TOTAL // 2)
    assert policy_of(sampling(min_p=0.25), options, 100, 3).min_p == TOTAL // 4
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


@pytest.mark.parametrize("extra", [None, {}, {"other": "x"}, {"draftwire_depth": 0}])
def test_a_request_may_name_its_depth(extra: Any) -> None:
    params = SimpleNamespace(extra_args=extra)
    check_depth(params)
    assert depth_of(params) == (0 if extra and "draftwire_depth" in extra else MAX_DEPTH)


@pytest.mark.parametrize("depth", [-1, MAX_DEPTH + 1, 1.0, "2", True, None, [1]])
def test_what_is_no_depth_is_refused_in_a_sentence(depth: Any) -> None:
    params = SimpleNamespace(extra_args={"draftwire_depth": depth})
    with pytest.raises(ConfigurationError, match="whole number from 0 \\(no drafts\\) to 64, not"):
        check_depth(params)
    assert depth_of(params) == MAX_DEPTH  # a worker that meets one all the same goes on
