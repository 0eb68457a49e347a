"""Engines by name: loaded when asked for, and refused with what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from draftwire.engines import registry
from draftwire.engines.registry import ENGINES, EngineEntry, load_drafter, load_target
from draftwire.errors import ConfigurationError


def test_the_registry_imports_no_engine() -> None:
    code = "import sys, draftwire.engines.registry; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_the_embedded_pair_is_loaded_by_name() -> None:
    target = load_target(None, device="cpu", name="hf")
    drafter = load_drafter(None, device="cpu", name="hf")
    assert target.engine.tokenizer_hash == drafter.tokenizer_hash
    assert target.engine.identity != drafter.identity
    assert target.tokenizer("def")["input_ids"] and target.folder.is_dir()


def test_an_engine_that_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(ConfigurationError, match="no engine 'llamacpp': one of hf"):
        load_target(None, device="cpu", name="llamacpp")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EngineEntry("nowhere:target", "nowhere:drafter", "other", ("no_such_package",))
    monkeypatch.setattr(registry, "ENGINES", {**ENGINES, "other": entry})
    with pytest.raises(ConfigurationError, match=r"no_such_package.*draftwire\[other\]"):
        load_drafter(None, device="cpu", name="other")
