"""What a drafter is told of a request's parameters in vLLM; no vLLM is imported here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftwire.engines.vllm.config import Options
from draftwire.engines.vllm.mirrored import mirrored
from draftwire.engines.vllm.policy import policy_of
from draftwire.transport.tcp import Address
from draftwire.verifier.mirror import mirrored_bytes
from draftwire.wire.processors import (
    ALWAYS,
    Allow,
    Bias,
    Occurrence,
    Processor,
    Repetition,
    Sequences,
    Suppress,
)

NEVER = float("-inf")
PLAIN: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "allowed_token_ids": None,
    "bad_words_token_ids": None,
    "min_tokens": 0,
    "all_stop_token_ids": {1},
    "logit_bias": None,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}


def said(**changes: Any) -> list[Processor]:
    return list(mirrored(SimpleNamespace(**(PLAIN | changes)), 4))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"allowed_token_ids": [7, 2]}, Allow(0, ALWAYS, (7, 2))),
        ({"bad_words_token_ids": [[5], [6, 7]]}, Sequences(4, ((NEVER, (5,)), (NEVER, (6, 7))))),
        ({"min_tokens": 3}, Suppress(0, 7, (1,))),
        ({"logit_bias": {6: 2.0, 3: -1.0}}, Bias((6, 3), (2.0, -1.0))),
        ({"repetition_penalty": 1.3}, Repetition(0, 1.3)),
        ({"frequency_penalty": 0.5}, Occurrence(4, 0.0, 0.5)),
        ({"presence_penalty": -0.5}, Occurrence(4, -0.5, 0.0)),
    ],
)
def test_each_parameter_is_a_processor(changes: Any, expected: Processor | None) -> None:
    assert said(**changes) == ([] if expected is None else [expected])


def test_their_order_is_that_of_the_sampler() -> None:
    every = said(
        allowed_token_ids=[1],
        bad_words_token_ids=[[2]],
        min_tokens=1,
        logit_bias={3: 1.0},
        repetition_penalty=2.0,
        presence_penalty=1.0,
    )
    kinds = [Allow, Sequences, Suppress, Bias, Repetition, Occurrence]
    assert [type(each) for each in every] == kinds


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_policy_of_a_round_holds_them(temperature: float) -> None:
    params = SimpleNamespace(**PLAIN | {"temperature": temperature})
    encoded = mirrored_bytes(said(repetition_penalty=1.3), 16)
    options = Options(3, Address("127.0.0.1", 1))
    assert policy_of(params, options, 16, 3, encoded).processors == encoded
    assert policy_of(params, options, 16, 3).processors == b""
