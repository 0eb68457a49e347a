"""The command that compares whole vocabularies finds what differs, and nothing else."""

import json

import pytest

from benchmarks import equality
from draftwire.kernels.shards import quantise as shards_quantise
from draftwire.kernels.shards import verify as shards_verify
from draftwire.kernels.shards.verify import Place
from draftwire.kernels.torch import quantise as torch_quantise
from draftwire.wire.registry import TOTAL

from . import interpreted as interpreted  # Triton's kernels on the CPU

SIZE = ("--vocab", "300", "--rows", "24")


@pytest.mark.parametrize("name", ["torch", "triton", "2 shards", "7 shards"])
def test_nothing_differs(name, tmp_path):
    assert equality.main([*SIZE, "--only", name, "--out", str(tmp_path)]) == 0
    (line,) = json.loads((tmp_path / "equality.json").read_text())["lines"]
    assert (line["rows"], line["round_rows"]) == (24, 24)


def test_other_weights_are_found(tmp_path, monkeypatch):
    """Every weight but the largest 1/2048 smaller: counts move."""
    own = torch_quantise.exp64
    monkeypatch.setattr(torch_quantise, "exp64", lambda d: own(d - (d < 0) * 2.0**-11))
    assert equality.main([*SIZE, "--only", "torch", "--out", str(tmp_path)]) == 1


def test_other_draws_are_found(tmp_path, monkeypatch):
    own = shards_quantise.draw

    def moved(rows, words):
        return (yield from own(rows, None if words is None else (words + (1 << 22)) % TOTAL))

    monkeypatch.setattr(shards_quantise, "draw", moved)
    assert equality.main([*SIZE, "--only", "3 shards", "--out", str(tmp_path)]) == 1


def test_other_verdicts_are_found(tmp_path, monkeypatch):
    """A leader that judges by the words of another round."""
    own = shards_verify.verify

    def elsewhere(rounds, places, sources):
        return own(rounds, [Place(1, 2, 40)], sources)

    monkeypatch.setattr(shards_verify, "verify", elsewhere)
    assert equality.main([*SIZE, "--only", "2 shards", "--out", str(tmp_path)]) == 1
