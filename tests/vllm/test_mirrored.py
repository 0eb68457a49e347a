"""What a drafter is told of a request does to rows what vLLM does to them (case M15)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.penalties import apply_all_penalties

from draftwire.drafter.contexts import HeldContext
from draftwire.drafter.mirror import Mirror
from draftwire.engines.hf import HfDraftEngine
from draftwire.engines.vllm.constraints import add_bias
from draftwire.engines.vllm.mirrored import mirrored
from draftwire.kernels.registry import kernels_for
from draftwire.session.prefix import Prefix
from draftwire.verifier.mirror import mirrored_bytes
from tests.vllm.engines import remote_arguments, running, serving, speculation_of

V = 16
PROMPT, OUTPUT = [3, 7, 2, 9, 3], [7, 5, 5, 2, 6]
KINDS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": -0.4},
    "bias": {"logit_bias": {6: 3.0, 2: -2.0}},
    "bad words": {},
    "all": {"repetition_penalty": 0.8, "presence_penalty": 0.5, "logit_bias": {5: 1.5}},
}
BAD = [[4], [2, 6], [5, 5, 2], [9, 3, 7]]  # the last one would need the prompt

READ = (
    "allowed_token_ids",
    "min_tokens",
    "all_stop_token_ids",
    "logit_bias",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_that_vllm_makes(kind: str) -> None:
    asked = SamplingParams(**KINDS[kind])
    params = SimpleNamespace(**{name: getattr(asked, name) for name in READ})
    params.bad_words_token_ids = BAD if kind in ("bad words", "all") else None
    encoded = mirrored_bytes(mirrored(params, len(PROMPT)), V)
    mirror = Mirror(encoded, Prefix(PROMPT), V)
    mirror.follow(len(PROMPT))
    rng = np.random.default_rng(1)
    for written in range(len(OUTPUT) + 1):
        rows = torch.from_numpy(rng.normal(size=(1, V)).astype(np.float32))
        got = kernels_for("torch", "cpu").adjust(rows, [mirror.adjustments()])
        expected = rows.clone()
        output = OUTPUT[:written]
        add_bias(expected, [params], [1])
        if params.bad_words_token_ids:
            apply_bad_words(expected, {0: params.bad_words_token_ids}, [output])
        penalties = [
            torch.tensor([value])
            for value in (
                params.presence_penalty,
                params.frequency_penalty,
                params.repetition_penalty,
            )
        ]
        apply_all_penalties(expected, torch.tensor([PROMPT]), *penalties, [output])
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-6)
        if written < len(OUTPUT):
            mirror.draft(OUTPUT[written])


REQUESTS = [
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.5, "frequency_penalty": 1.0},
    {"logit_bias": {2: 4.0, 5: -4.0}, "min_tokens": 10},
    {"allowed_token_ids": [2, 3, 4], "repetition_penalty": 1.2},
]


def test_a_drafter_of_the_same_weights_is_accepted(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """q follows the requests of a batch; a drafter that ignores them loses drafts."""
    shares = []
    options = {"deadline_ms": 20_000, "layout": "sparse:8", "breaker": False}
    with (
        serving(HfDraftEngine.from_folder(tiny)) as address,
        running(tiny, **remote_arguments(address, **options)) as engine,
    ):
        for side in (None, lambda held, task, vocab_size: None):
            if side is not None:
                monkeypatch.setattr(HeldContext, "mirror_of", side)
            metrics = speculation_of(engine).metrics
            before = [metrics[name] for name in ("draft_tokens", "accepted_tokens")]
            params = [
                SamplingParams(temperature=1.0, max_tokens=40, seed=at, ignore_eos=True, **each)
                for at, each in enumerate(REQUESTS)
            ]
            prompts = [{"prompt_token_ids": [3, 4]} for _ in params]
            engine.generate(prompts, params, use_tqdm=False)
            drafted = metrics["draft_tokens"] - before[0]
            accepted = metrics["accepted_tokens"] - before[1]
            assert drafted > 50
            shares.append(accepted / drafted)
    assert shares[0] > 0.98
    assert shares[1] < 0.9
