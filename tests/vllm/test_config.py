"""Wrong configurations, refused at start in the process that the user sees, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import EngineArgs

from draftwire.engines.vllm import compatibility, plugin
from draftwire.engines.vllm.config import PROPOSER, WORKER, Options
from draftwire.errors import ConfigurationError
from tests.vllm.engines import engine_arguments, remote_arguments


def configured(folder: Path, **more: Any) -> Any:
    plugin.register()
    return EngineArgs(**engine_arguments(folder, **more)).create_engine_config()


def test_a_right_one_is_taken(tiny: Path) -> None:
    config = configured(tiny, **remote_arguments("127.0.0.1:7711", layout="dense", audit=False))
    options = Options.of(config)
    assert (options.depth, options.support, options.audit) == (3, 0, False)


def test_the_entry_point_may_be_called_again_and_leaves_others_alone(tiny: Path) -> None:
    plugin.register()
    once = EngineArgs.create_engine_config
    plugin.register()
    assert EngineArgs.create_engine_config is once
    assert configured(tiny).speculative_config is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"adress": "x:1"}, "has no 'adress': it takes address"),
        ({"deadline_ms": 0}, "deadline_ms must be a finite number above 0"),
        ({"deadline_ms": float("inf")}, "deadline_ms must be a finite number above 0"),
        ({"layout": "sparse"}, 'layout must be "dense" or "sparse:K"'),
        ({"audit": "yes"}, "audit must be true or false"),
        ({"draft_identity": "abc"}, "64 hexadecimal digits"),
    ],
)
def test_wrong_options_are_named(tiny: Path, options: dict[str, Any], says: str) -> None:
    arguments = remote_arguments("127.0.0.1:7711")
    arguments["additional_config"]["draftwire"].update(options)
    with pytest.raises(ConfigurationError, match=says):
        configured(tiny, **arguments)


def test_wrong_addresses_are_named(tiny: Path) -> None:
    with pytest.raises(ConfigurationError, match="no HOST:PORT"):
        configured(tiny, **remote_arguments("nowhere"))


def test_half_of_the_flags_is_refused_with_the_other_half(tiny: Path) -> None:
    arguments = remote_arguments("127.0.0.1:7711")
    del arguments["worker_cls"]
    with pytest.raises(ConfigurationError, match=f"add --worker-cls {WORKER}"):
        configured(tiny, **arguments)
    with pytest.raises(ConfigurationError, match=f"add --speculative-config .*{PROPOSER}"):
        configured(tiny, worker_cls=WORKER)


def test_another_acceptance_method_is_refused(tiny: Path) -> None:
    arguments = remote_arguments("127.0.0.1:7711")
    arguments["speculative_config"]["rejection_sample_method"] = "block"
    with pytest.raises(ConfigurationError, match="a sampler of its own"):
        configured(tiny, **arguments)


def test_this_vllm_is_the_one_that_is_known() -> None:
    compatibility.require_vllm()


def test_another_vllm_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.34.1+cpu")
    with pytest.raises(
        ConfigurationError, match=r"works with vLLM 0\.32\.0 up to.*this is 0\.34\.1"
    ):
        compatibility.require_vllm()


def test_a_changed_private_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    monkeypatch.delattr(GPUModelRunner, "_input_fits_in_drafter")
    with pytest.raises(ConfigurationError, match=r"GPUModelRunner\._input_fits_in_drafter"):
        compatibility.require_vllm()
