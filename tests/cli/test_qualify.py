"""``draftwire qualify``: measured, printed, and an exit code that scripts can use."""

import json

import pytest
import torch

from draftwire.cli import main, qualify
from draftwire.errors import ExitCode
from draftwire.kernels import qualify as measuring
from draftwire.kernels.torch import host_rows as torch_host
from draftwire.kernels.torch import quantise as torch_quantise
from draftwire.kernels.torch.kernels import TorchKernels
from draftwire.kernels.torch.rounds import decide

SMALL = ["--rows", "2", "--vocab", "24", "--huge-vocab", "300", "--json"]
KINDS = {"flat", "peaked", "near-tied", "tiny p", "random", "one legal id", "huge V"}


@pytest.fixture(autouse=True)
def without_the_pair(monkeypatch):
    monkeypatch.setattr(qualify, "real_rows", lambda rows: iter(()))


def run(capsys, *arguments):
    code = main.run(["qualify", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "name"), [("--backend", "numpy"), ("--backend", "torch"), ("--kernels", "cpu")]
)
def test_sound_kernels_are_measured(capsys, flag, name):
    code, out = run(capsys, flag, name, *SMALL)
    assert code == ExitCode.OK
    found = json.loads(out)
    assert found["sound"] and {each["name"] for each in found["measured"]} == KINDS
    assert sum(each["decisions"] for each in found["measured"]) > 1000
    assert found["backend"] == name
    assert all(each["p_distance"] < 1e-12 for each in found["measured"])
    assert all(each["reach"] < 1e-9 for each in found["measured"])


def test_triton_is_measured_under_the_interpreter(capsys, monkeypatch):
    """One policy and two kinds of rows: under the interpreter launches are slow."""
    kinds = qualify.sample_rows
    monkeypatch.setattr(measuring, "POLICIES", measuring.POLICIES[:1])
    monkeypatch.setattr(qualify, "sample_rows", lambda *given: list(kinds(*given))[4:6])
    small = ["--rows", "1", "--vocab", "8", "--huge-vocab", "0", "--json"]
    code, out = run(capsys, "--backend", "triton", *small)
    assert code == ExitCode.OK and json.loads(out)["sound"]


def test_a_table_for_people(capsys):
    code, out = run(capsys, "--backend", "numpy", *SMALL[:-1])
    assert code == ExitCode.OK
    assert "one legal id" in out and "sound: equal to the bit" in out


def guessed(difference, count, mass, bound, first):
    """A decision at the edge itself, inside every bound."""
    return decide(difference, count, mass, -1e-9, first)


def in_binary32(d):
    return torch.exp(d.to(torch.float32)).to(torch.float64)


@pytest.mark.parametrize(
    ("module", "name", "mutant", "field"),
    [
        (torch_quantise, "exp64", in_binary32, "counts_differing"),
        (torch_host, "decide", guessed, "wrong"),
        (TorchKernels, "draw", lambda kernels, q, words: words * 0, "draws_differing"),
    ],
)
def test_kernels_that_are_off_by_a_bit_end_with_7(capsys, monkeypatch, module, name, mutant, field):
    monkeypatch.setattr(module, name, mutant)
    code, out = run(capsys, "--backend", "torch", *SMALL)
    assert code == ExitCode.NOT_CONFORMING
    assert sum(each[field] for each in json.loads(out)["measured"]) > 0


def test_a_device_that_is_not_there_is_one_clear_error(capsys):
    assert main.run(["qualify", "--backend", "numpy", "--device", "cuda"]) == 3
    assert "computes on cpu" in capsys.readouterr().err
    assert main.run(["qualify", "--backend", "cupy"]) == ExitCode.USAGE
