"""Calls whose model reads more than token ids: ``generate``'s own decoding, on the target alone."""

from __future__ import annotations

import functools
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from transformers.generation.stopping_criteria import StoppingCriteriaList

from draftwire.errors import ConfigurationError
from draftwire.telemetry.events import log_event
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.stop import Finish

_LOG: Final = logging.getLogger(__name__)

# What generate itself puts among the model's arguments, and what changes nothing for us.
_UNDERSTOOD: Final = (
    "attention_mask",
    "position_ids",
    "cache",
    "past_key_values",
    "use_cache",
    "logits_to_keep",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
)
# What generate has run through a model's encoders already: the caller's name for it is gone.
_GIVEN_AS: Final = {"mm_encoder_outputs": "pixel_values or the like"}


def other_inputs(model_kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names of what a call gives its model beside token ids, in order.

    What generate has encoded of images is an empty mapping where there is none. Raises
    ConfigurationError for embeddings, which stand in the place of ids: processors, stopping
    criteria and drafts are of ids.
    """
    found = sorted(
        name
        for name, value in model_kwargs.items()
        if name not in _UNDERSTOOD and not _nothing(value)
    )
    if "inputs_embeds" in found:
        raise ConfigurationError("only token ids can be drafted for, not inputs_embeds")
    return found


def _nothing(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and not value)


def decode_undrafted(
    model: Any,
    input_ids: torch.Tensor,
    processors: Any,
    criteria: Any,
    config: Any,
    model_kwargs: Mapping[str, Any],
    *,
    others: Sequence[str],
    keys: Sequence[tuple[int | None, int]],
    streamer: Any,
) -> tuple[Any, list[Report]]:
    """Return what ``generate`` returns without us, and a report a row that says so.

    others: the inputs that are the cause. Even zeros are no default of a model (GPT-2 adds the
    embedding of type 0), and how the next step's are made is known to the model alone. keys: the
    (seed, stream) of each row; with all seeds given the call repeats itself as a whole, otherwise
    it draws from torch's generator as ``generate`` does.
    """
    for seed, stream in keys:
        Sampling(seed=seed, stream=stream)  # refuses what is out of range
    names = ", ".join(_GIVEN_AS.get(name, name) for name in others)
    text = f"not drafted: the call gives the model {names}; the target alone, by generate itself"
    _say(text)
    counted = _Counted(criteria, input_ids)
    began = time.perf_counter()
    with _seeded(keys, input_ids.device):
        output = type(model)._sample(
            model,
            input_ids,
            logits_processor=processors,
            stopping_criteria=counted,
            generation_config=config,
            streamer=streamer,
            **model_kwargs,
        )
    seconds = time.perf_counter() - began
    most = config.max_length - input_ids.shape[1]
    prompts = _prompt_lengths(input_ids, model_kwargs.get("attention_mask"))
    reports = []
    for prompt, tokens in zip(prompts, counted.lengths.tolist(), strict=True):
        report = Report(prompt, tokens, rounds=tokens, target_only_rounds=tokens)
        report.seconds.total = report.seconds.target = seconds
        report.finish = Finish.MAX_TOKENS if tokens >= most else Finish.RULE
        report.note(text)
        reports.append(report)
    return output, reports


class _Counted(StoppingCriteriaList):
    """A call's criteria, and ``lengths``: tokens of each row's text, its end included."""

    def __init__(self, criteria: Any, input_ids: torch.Tensor) -> None:
        super().__init__(criteria)
        self._open = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
        self.lengths = torch.zeros_like(self._open, dtype=torch.long)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        ended: torch.Tensor = super().__call__(input_ids, scores, **options)
        self.lengths += self._open
        self._open &= ~ended
        return ended


@contextmanager
def _seeded(keys: Sequence[tuple[int | None, int]], device: torch.device) -> Iterator[None]:
    """Draw from torch's generator as the seeds say, and leave it as it was; None: from it."""
    if any(seed is None for seed, _ in keys):
        yield
        return
    digest = hashlib.blake2b(repr(list(keys)).encode(), digest_size=8).digest()
    devices = [] if device.type == "cpu" else [device]
    kind = "cuda" if device.type == "cpu" else device.type
    with torch.random.fork_rng(devices, device_type=kind):
        torch.manual_seed(int.from_bytes(digest, "little"))
        yield


def _prompt_lengths(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    count, length = input_ids.shape
    if mask is None or mask.shape != input_ids.shape:
        return [length] * count
    return [int(row.sum()) for row in mask]


@functools.cache
def _say(text: str) -> None:
    """Log it, once a process."""
    log_event(_LOG, logging.WARNING, "not_drafted", text)
