"""Calls that cannot be honoured to the letter are refused, saying which argument to drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache, StoppingCriteriaList

from draftwire.engines.hf import remote_speculative
from draftwire.errors import ConfigurationError, PairMismatchError
from testing.harness.tiny_models import tiny_llama
from tests.engines.hook_calls import PROMPT, AfterThree, Written, local_drafter, run, target_model


def _right_padded(model: Any, drafter: Any, **options: Any) -> Any:
    ids = torch.tensor([PROMPT, [3, 4, 5, 0, 0, 0]])
    mask = torch.tensor([[1] * 6, [1] * 3 + [0] * 3])
    options |= {"custom_generate": remote_speculative, "drafter": drafter}
    return model.generate(ids, attention_mask=mask, **options)


def _two_rows(model: Any, **options: Any) -> Any:
    return run(model, [PROMPT, [4]], **options)


def _one_row(model: Any, **options: Any) -> Any:
    return run(model, [PROMPT], **options)


REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "beams": (_one_row, {"num_beams": 2, "do_sample": False}, "drop num_beams"),
    "prompt_lookup": (_one_row, {"prompt_lookup_num_tokens": 3}, "another decoding"),
    "attentions": (_one_row, {"output_attentions": True}, "output_attentions"),
    "hidden": (_one_row, {"output_hidden_states": True}, "output_hidden_states"),
    "static": (_one_row, {"cache_implementation": "static"}, "cache_implementation"),
    "cache": (
        _one_row,
        {"cache": StaticCache(config=target_model().config, max_cache_len=32)},
        "pass no cache",
    ),
    "cache_of_rows": (_two_rows, {"cache": DynamicCache()}, "2 rows; .* pass no cache"),
    "embeddings": (
        _one_row,
        {"inputs_embeds": torch.zeros(1, len(PROMPT), 16)},
        "only token ids",
    ),
    "positions": (
        _one_row,
        {"position_ids": torch.arange(3, 3 + len(PROMPT))[None]},
        "position_ids",
    ),
    "right_padding": (_right_padded, {}, "padding_side"),
    "streamed_batch": (_two_rows, {"streamer": Written()}, "only one row"),
    "stateful": (_one_row, {"guidance_scale": 1.5}, "keeps state"),
    "no_pad": (
        _two_rows,
        {
            "eos_token_id": None,
            "pad_token_id": None,
            "stopping_criteria": StoppingCriteriaList([AfterThree()]),
        },
        "pad_token_id",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_cannot_be_honoured_is_refused_in_words(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, options, words = REFUSED[case]
    model = target_model()
    if case == "no_pad":
        monkeypatch.setattr(model.generation_config, "eos_token_id", None)
        monkeypatch.setattr(model.generation_config, "pad_token_id", None)
    arguments = {"do_sample": True, "max_new_tokens": 4} | options
    with pytest.raises(ConfigurationError, match=words):
        call(model, drafter=local_drafter(model), **arguments)


def test_a_drafter_of_a_larger_vocabulary_is_refused() -> None:
    wide = tiny_llama(24)
    drafter = local_drafter(wide, tiny_llama(24, layers=1), vocab_size=24)
    with pytest.raises(PairMismatchError) as caught:
        run(target_model(), [PROMPT], drafter, do_sample=True, max_new_tokens=4)
    assert caught.value.field == "vocab_size"
