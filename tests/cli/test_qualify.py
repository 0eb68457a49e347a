"""``draftwire qualify``: measured, printed, and an exit code that scripts can use."""

import json

import pytest
import torch

from draftwire.cli import main, qualify
from draftwire.errors import ExitCode
from draftwire.kernels import qualify as measuring
from draftwire.kernels.torch import host as torch_host
from draftwire.kernels.torch import quantise as torch_quantise
from draftwire.kernels.torch import verify as torch_verify

SMALL = ["--rows", "2", "--vocab", "24", "--huge-vocab", "300", "--json"]
KINDS = {"flat", "peaked", "near-tied", "tiny p", "random", "one legal id", "huge V"}


@pytest.fixture(autouse=True)
def without_the_pair(monkeypatch):
    monkeypatch.setattr(qualify, "real_rows", lambda rows: iter(()))


def run(capsys, *arguments):
    code = main.run(["qualify", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_sound_backend_is_measured(capsys, backend):
    code, out = run(capsys, "--backend", backend, *SMALL)
    assert code == ExitCode.OK
    found = json.loads(out)
    assert found["sound"] and {each["name"] for each in found["measured"]} == KINDS
    assert sum(each["decisions"] for each in found["measured"]) > 1000
    assert all(each["residual_distance"] < 1e-12 for each in found["measured"])
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


def in_binary32(d):
    return torch.exp(d.to(torch.float32)).to(torch.float64)


@pytest.mark.parametrize(
    ("module", "name", "mutant", "field"),
    [
        (torch_quantise, "exp64", in_binary32, "counts_differing"),
        (torch_host, "bound_of", lambda size: -1e-9, "wrong"),
        (torch_verify, "draw", lambda q, words: words * 0, "draws_differing"),
    ],
)
def test_a_backend_that_is_off_by_a_bit_ends_with_7(
    capsys, monkeypatch, module, name, mutant, field
):
    monkeypatch.setattr(module, name, mutant)
    code, out = run(capsys, "--backend", "torch", *SMALL)
    assert code == ExitCode.NOT_CONFORMING
    assert sum(each[field] for each in json.loads(out)["measured"]) > 0


def test_a_device_that_is_not_there_is_one_clear_error(capsys):
    assert main.run(["qualify", "--backend", "numpy", "--device", "cuda"]) == 3
    assert "computes on cpu" in capsys.readouterr().err
    assert main.run(["qualify", "--backend", "cupy"]) == ExitCode.USAGE
