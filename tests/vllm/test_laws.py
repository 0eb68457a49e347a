"""Laws of texts out of vLLM with a drafter whose q is far from p, beside the model's exact joint.

V = 8, depth 3, texts of 4 tokens (the first one has no drafts). Every row of p that was used equals
the reference's: that is the exact part, for what becomes of such rows is enumerated in
``tests/engines/test_vllm_speculation.py``. The texts are then held against the joint law by
chi-square, N texts each, alpha = 1e-4 (nineteen such tests). What must fail does, far below that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample import rejection_sampler

from draftwire.engines.vllm import repairs
from draftwire.engines.vllm.speculation import SpeculationState, VerifyRequest
from draftwire.kernels import cpu
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from tests.vllm.conftest import Bench, Judged
from tests.vllm.engines import speculation_of, texts
from tests.vllm.models import END
from tests.vllm.reference import Text, p_value, worst_of

ALPHA = 1e-4
N = 700
LENGTH = 4
PROMPT = (3, 4)


def params(seed: int | None = None, **more: Any) -> Any:
    arguments = {"temperature": 1.0, "max_tokens": LENGTH, "ignore_eos": True, "seed": seed, **more}
    return SamplingParams(**arguments)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cool": {"temperature": 0.7},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.93},
    "both, warm": {"temperature": 1.3, "top_k": 5, "top_p": 0.8},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": 0.3},
    "ends, but not at once": {"ignore_eos": False, "min_tokens": 3},
    "some ids only": {"allowed_token_ids": [1, 2, 4, 5, 6]},
    "greedy": {"temperature": 0.0},
    "stop ids": {"stop_token_ids": [2], "ignore_eos": False},
    "bad words": {"bad_words": ["w6", "true false", "w7 w7 true"]},
    "min-p": {"temperature": 1.2, "min_p": 0.12},
    "bias": {"logit_bias": {2: 2.5, 6: -3.0}},
    "bias and much else": {
        "logit_bias": {1: -100.0, 4: 1.5, 7: 2.0},
        "repetition_penalty": 1.4,
        "temperature": 1.1,
        "min_p": 0.05,
        "top_k": 5,
        "top_p": 0.9,
    },
    "bias, greedy": {"temperature": 0.0, "logit_bias": {5: 2.0}},
    "regex": {
        "ignore_eos": False,
        "structured_outputs": StructuredOutputsParams(regex="(true|false)([}w67]*w6)?"),
    },
    "JSON schema": {
        "ignore_eos": False,
        "temperature": 2.0,
        "structured_outputs": StructuredOutputsParams(json=SCHEMA),
    },
}


def sample(bench: Bench, kinds: dict[str, dict[str, Any]], n: int) -> dict[str, list[Text]]:
    """Generate n texts of each kind, all in one batch, every other one with a seed of its own."""
    wanted = [(name, index) for index in range(n) for name in kinds]
    asked = [params(index if index % 2 else None, **kinds[name]) for name, index in wanted]
    got = texts(bench.engine, [PROMPT] * len(asked), asked)
    result: dict[str, list[Text]] = {name: [] for name in kinds}
    for (name, _), text in zip(wanted, got, strict=True):
        result[name].append(text)
    return result


def law_of(bench: Bench, name: str) -> dict[Text, float]:
    one = params(**KINDS[name])
    one.update_from_generation_config({}, eos_token_id=END)
    one.update_from_tokenizer(bench.engine.get_tokenizer())
    return bench.reference.law(one, PROMPT, LENGTH)


def test_p_of_every_row_is_the_models_own_at_that_place(bench: Bench, record: list[Judged]) -> None:
    """D8, G22, case M17: at every position, drafts and all in place; the bonus row as well."""
    sample(bench, KINDS, 12)
    assert sum(row.drafts_before > 0 for row in record) > 100
    assert worst_of(bench, PROMPT, record) < 2e-5


def test_a_mixed_batch_has_the_law_of_each_request(bench: Bench) -> None:
    speculation = speculation_of(bench.engine)
    misses = dict(speculation.metrics.labelled("misses"))
    got = sample(bench, KINDS, N)
    values = {name: p_value(law_of(bench, name), got[name]) for name in KINDS}
    counts = {name: speculation.metrics[name] for name in ("accepted_tokens", "truncated_tokens")}
    print(values, counts)
    assert all(value > ALPHA for value in values.values()), values
    assert len(set(got["greedy"])) == len(set(got["bias, greedy"])) == 1
    # Steps of this engine are too small for all drafts.
    assert counts["accepted_tokens"] > 0 and counts["truncated_tokens"] > 0
    assert speculation.metrics.labelled("misses") == misses  # whatever is cut off, none is lost
    bench.engine.llm_engine.step()  # vLLM tells its workers of ends with the next step
    assert not speculation.requests


def test_the_law_holds_while_the_drafter_dies_at_random(bench: Bench) -> None:
    speculation = speculation_of(bench.engine)
    bench.line.breaks = 20_000.0  # bytes, on the mean: replies have one size, whatever is in them
    before = dict(speculation.metrics.labelled("misses"))
    try:
        got = sample(bench, {name: KINDS[name] for name in ("plain", "top-p")}, N)
    finally:
        bench.line.breaks = None
    values = {name: p_value(law_of(bench, name), texts) for name, texts in got.items()}
    print(values, bench.line.cuts, speculation.metrics.labelled("misses"))
    assert all(value > ALPHA for value in values.values()), values
    assert bench.line.cuts > 3
    assert speculation.metrics.labelled("misses") != before


def test_another_q_than_the_drafts_were_drawn_from_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_step = SpeculationState.verify_step
    policy = ProposalPolicy(Layout.SPARSE, 1, 1.0, support=8)
    uniform = cpu.quantise(np.zeros(8, np.float32), policy)

    def replaced(
        self: SpeculationState, scores: Any, requests: Sequence[VerifyRequest]
    ) -> list[tuple[int, ...]]:
        for proposal in (each.active.proposal for each in requests):
            if proposal is not None:
                object.__setattr__(proposal, "rows", (uniform,) * len(proposal.tokens))
        return verify_step(self, scores, requests)

    monkeypatch.setattr(SpeculationState, "verify_step", replaced)
    got = sample(bench, {"plain": KINDS["plain"]}, N)
    assert p_value(law_of(bench, "plain"), got["plain"]) < 1e-10


def test_another_temperature_than_the_requests_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_step = SpeculationState.verify_step

    def untempered(
        self: SpeculationState, scores: Any, requests: Sequence[VerifyRequest]
    ) -> list[tuple[int, ...]]:
        return verify_step(self, scores * 0.7, requests)

    monkeypatch.setattr(SpeculationState, "verify_step", untempered)
    got = sample(bench, {"cool": KINDS["cool"]}, N)
    assert p_value(law_of(bench, "cool"), got["cool"]) < 1e-10


def test_the_fault_of_the_cpu_kernel_unrepaired_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows' temperatures are whatever the memory held; it is filled here, to be the same."""

    def lost(x: Any, cu_num_tokens: Any, num_tokens: int, **_: int) -> Any:
        return x.new_full((num_tokens,), 3.0)

    assert rejection_sampler.expand_batch_to_tokens is repairs.expand_batch_to_tokens
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", lost)
    got = sample(bench, {"plain": KINDS["plain"]}, N)
    assert p_value(law_of(bench, "plain"), got["plain"]) < 1e-10
