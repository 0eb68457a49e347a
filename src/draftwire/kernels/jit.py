"""How a loop is compiled: without the interpreter lock, cached on disk, IEEE to the letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numba import njit

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a loop over arrays with Numba.

    No ``fastmath``: additions keep their order and a multiply and an add stay two roundings, which
    the arithmetic asks for (spec/arithmetic.md). Where no folder for the cache can be written (a
    read-only installation without a home) the loop is compiled anew in each process.
    """
    return _compiled(function, fastmath=False)


def jit_reassociated(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a loop whose sums may be taken in an order that the compiler chooses, once.

    For a model's own products alone. NaN and infinity keep their meaning.
    """
    return _compiled(function, fastmath={"reassoc", "contract"})


def _compiled(function: Callable[_P, _R], fastmath: bool | set[str]) -> Callable[_P, _R]:
    options = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
    try:
        loop: Callable[_P, _R] = njit(cache=True, **options)(function)
    except RuntimeError:
        loop = njit(cache=False, **options)(function)
    return loop
