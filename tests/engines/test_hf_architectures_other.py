"""The other half of all causal classes of transformers; see ``test_hf_architectures``."""

from __future__ import annotations

import pytest

from testing.harness.architectures import model_types
from tests.engines.architecture_rows import agrees, quiet

__all__ = ["quiet"]


@pytest.mark.parametrize("model_type", model_types()[1::2])
def test_a_class_is_served_as_the_table_says(model_type: str) -> None:
    agrees(model_type)
