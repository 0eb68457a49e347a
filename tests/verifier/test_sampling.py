"""Sampling parameters: what is refused, and which key a request gets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwire.errors import ConfigurationError
from draftwire.verifier.sampling import Sampling


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-300),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("seed", -1),
        ("seed", 1 << 128),
        ("stream", 1 << 64),
        ("max_tokens", 0),
        ("stop", ("",)),
        ("stop", "end"),
        ("stop", (1,)),
        ("stop", None),
        ("seed", 1.0),
        ("seed", "1"),
        ("top_k", 2.5),
        ("max_tokens", None),
        ("max_tokens", 2.5),
        ("stream", 1.5),
        ("temperature", None),
        ("temperature", "1"),
    ],
)
def test_what_cannot_work_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Sampling(**{name: value})  # type: ignore[arg-type]


def test_numpys_numbers_are_the_same_numbers() -> None:
    sampling = Sampling(seed=np.uint64(7), top_k=np.int32(3), temperature=np.float32(0.5))  # type: ignore[arg-type]
    assert sampling.request_key() == Sampling(seed=7).request_key()
    assert type(sampling.top_k) is int and sampling.temperature == 0.5
    assert Sampling(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_an_explicit_seed_gives_the_same_key_again() -> None:
    assert (
        Sampling(seed=7, stream=3).request_key().proposal_key
        == Sampling(seed=7, stream=3).request_key().proposal_key
    )
    keys = {Sampling(seed=7, stream=stream).request_key().proposal_key for stream in range(64)}
    assert len(keys) == 64


def test_r14_unseeded_requests_get_independent_keys() -> None:
    sampling = Sampling()
    assert len({sampling.request_key().proposal_key for _ in range(1000)}) == 1000


def test_greedy_is_temperature_zero() -> None:
    assert Sampling(temperature=0).greedy
    assert not Sampling(temperature=0.01).greedy
