"""Every second causal class of transformers, as target and as drafter (cases M5 and M6)."""

from __future__ import annotations

import pytest

from testing.harness.architecture_walk import YES
from testing.harness.architectures import NOT_TINY, model_types
from tests.engines.architecture_rows import agrees, quiet
from tools.architectures import rows

__all__ = ["quiet"]


@pytest.mark.parametrize("model_type", model_types()[::2])
def test_a_class_is_served_as_the_table_says(model_type: str) -> None:
    agrees(model_type)


def test_the_table_holds_what_people_have() -> None:
    table = rows()
    assert len(table) >= len(model_types())
    assert len(NOT_TINY) < 20
    for name in ("Llama", "Qwen3", "Qwen3_5", "Qwen3Next", "Gemma3", "Gemma3n", "Gemma4", "GptOss"):
        assert table[f"{name}ForCausalLM"].split("|")[2].strip() == YES
    for name in ("Phi3", "Glm4", "GlmMoeDsa", "Mistral", "Lfm2", "Llama4", "DeepseekV3", "Mixtral"):
        assert table[f"{name}ForCausalLM"].split("|")[2].strip() == YES
    for name in ("NemotronH", "FalconH1", "KimiLinear", "Bamba", "Mamba2", "GraniteMoeHybrid"):
        assert table[f"{name}ForCausalLM"].split("|")[2].strip() == YES
