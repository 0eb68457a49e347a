"""Logits processors whose state no copy holds are refused before their answers change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from draftwire.engines.hf import remote_speculative
from draftwire.engines.hf.outside_state import outside_state
from draftwire.errors import ConfigurationError
from testing.harness.tiny_models import tiny_llama

V = 29
CALLS = [0]


def counting_in_a_closure() -> Any:
    calls = 0

    def allowed(batch: int, ids: torch.Tensor) -> list[int]:
        nonlocal calls
        calls += 1
        return [3 + len(ids) % 20] if calls <= 30 else [5]

    return {"prefix_allowed_tokens_fn": allowed}


def counting_in_a_global() -> Any:
    def allowed(batch: int, ids: torch.Tensor) -> list[int]:
        CALLS[0] += 1
        return [3 + len(ids) % 20]

    return {"prefix_allowed_tokens_fn": allowed}


class Counting(LogitsProcessor):
    """Counts its calls where all of its class see them."""

    calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Leave the scores as they are."""
        Counting.calls += 1
        return scores


def counting_in_its_class() -> Any:
    return {"logits_processor": LogitsProcessorList([Counting()])}


@pytest.mark.parametrize(
    "make", [counting_in_a_closure, counting_in_a_global, counting_in_its_class]
)
def test_a_processor_that_counts_its_calls_outside_itself_is_refused(
    make: Callable[[], Any],
) -> None:
    model, ids = tiny_llama(V), torch.tensor([[3, 4, 5]])
    with pytest.raises(ConfigurationError, match="changes what stands outside it"):
        model.generate(
            ids, custom_generate=remote_speculative, do_sample=False, max_new_tokens=4, **make()
        )


def test_a_closure_that_is_only_read_is_used() -> None:
    words = [[7, 8], [9]]
    model, ids = tiny_llama(V), torch.tensor([[3, 4, 5]])
    call: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": 6,
        "prefix_allowed_tokens_fn": lambda batch, given: words[len(given) % 2],
    }
    drafted = model.generate(ids, custom_generate=remote_speculative, **call)
    assert torch.equal(drafted, model.generate(ids, **call))


def test_what_is_no_plain_data_is_left_out() -> None:
    model = tiny_llama(V)
    assert outside_state(lambda ids, scores: model(ids)) == []
