"""One set of operations over batches of rows, whatever computes them: numpy, torch, triton.

Every backend gives the same counts, draws and words to the bit, because they are integers made by a
fixed sequence of operations (spec/arithmetic.md). Verification is one decision a request; where
binary64 with its bound cannot take it, the row says ``UNDECIDED`` and the caller takes it after the
round from exact integers (:func:`draftwire.kernels.resolve.resolve`). A row that is refused says
why in its status and touches no other row. On a device no operation waits for the host, and shapes
depend on shapes alone, so a round can be captured in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from draftwire.errors import ConfigurationError
from draftwire.kernels.protocol import NO_TOKEN as NO_TOKEN
from draftwire.kernels.protocol import OK as OK
from draftwire.kernels.protocol import P_CUTOFF as P_CUTOFF
from draftwire.kernels.protocol import PAD_ID as PAD_ID
from draftwire.kernels.protocol import UNDECIDED as UNDECIDED
from draftwire.kernels.protocol import Array, QRows
from draftwire.kernels.protocol import bound_of as bound_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from draftwire.wire.messages import ProposalPolicy

__all__ = [
    "BACKENDS",
    "Backend",
    "Drawn",
    "Draws",
    "QRows",
    "Verdicts",
    "load",
]

BACKENDS: Final = ("numpy", "torch", "triton")


@dataclass(frozen=True, slots=True)
class Drawn(Generic[Array]):
    """One token a row. tokens: int64 (N,), NO_TOKEN where status is not OK; status: int32 (N,)."""

    tokens: Array
    status: Array


@dataclass(frozen=True, slots=True)
class Draws(Generic[Array]):
    """The first 48 bits of every U that a round may read (A15), two words as one int64.

    acceptance, correction: (B, K); bonus: (B,).
    """

    acceptance: Array
    correction: Array
    bonus: Array


@dataclass(frozen=True, slots=True)
class Verdicts(Generic[Array]):
    """How the rounds of B requests ended.

    accepted: int64 (B,), drafts accepted, 0..K; tokens: int64 (B,), the correction where accepted
    < K and the bonus otherwise; status: int32 (B,). Where it is not OK they are 0 and NO_TOKEN.
    """

    accepted: Array
    tokens: Array
    status: Array


class Backend(Protocol[Array]):
    """The operations in the order that the origin names them; all arrays of one call on one device.

    logits: binary32 or bfloat16 (which widens exactly), contiguous in the last axis.
    """

    @property
    def name(self) -> str:
        """Which of BACKENDS this is."""
        ...

    def from_host(self, array: NDArray[Any]) -> Array:
        """A copy of a NumPy array where this backend computes."""
        ...

    def to_host(self, array: Array) -> NDArray[Any]:
        """A NumPy array of the same values; waits for the device."""
        ...

    def words(self, keys: Array, addresses: Array, count: int) -> Array:
        """The first ``count`` (1..4) words of each address, int64 (N, count), 24 bits each (A13).

        keys: int64 (N, 2), KEY(domain) lane 0 first; addresses: int64 (N, 3), each u32 in value:
        generation, round, position.
        """
        ...

    def draws(self, keys: Array, addresses: Array, depth: int) -> Draws[Array]:
        """All words of a round. keys: int64 (B, 3, 2) of ACCEPTANCE, CORRECTION, BONUS;
        addresses: int64 (B, 3): generation, round, position of the first draft.
        """
        ...

    def weights(self, logits: Array, temperature: float) -> tuple[Array, Array]:
        """Integer weights int64 (N, V) of (N, V) logits, and the status int32 (N,) (A1-A4).

        temperature: 2^-14..2^14. A refused row has all weights 0.
        """
        ...

    def top_k(self, logits: Array, ids: Array, k: int) -> tuple[Array, Array]:
        """The k largest of n >= k candidates a row, ties to the lowest id (A5, A8).

        logits: (N, n); ids: int32 (N, n), distinct global ids in any order, PAD_ID for none.
        Returns (logits binary32, ids int32), both (N, k), largest first, PAD_ID with -inf at the
        end. The top k of a whole vocabulary is the top k of the top k's of its shards: the merge of
        shards is this same operation on their 2k or more candidates.
        """
        ...

    def quantise(self, logits: Array, policy: ProposalPolicy) -> tuple[QRows[Array], Array]:
        """q of (N, V) logits under one policy, and the status int32 (N,) (A1-A10).

        Dense rows for Layout.DENSE, otherwise S = policy.support (ids only: 1) columns. A refused
        row has no tickets. Errors: ArithmeticRefusalError OUT_OF_RANGE (policy, shapes).
        """
        ...

    def draw(self, q: QRows[Array], words: Array) -> Array:
        """The token of each word, int64 (N,): the first id whose cumulative count is above (A16).

        words: int64 (N,), 24 bits. NO_TOKEN where the counts end before it.
        """
        ...

    def lookup(self, q: QRows[Array], tokens: Array) -> Array:
        """Counts at one global id a row, int64 (N,); 0 outside the support or the vocabulary."""
        ...

    def residual_mass(self, logits: Array, q: QRows[Array]) -> Array:
        """sum(max(p - q, 0)) over the full vocabulary, float64 (N,), of (N, V) logits (A19).

        NaN for a row of logits that is refused.
        """
        ...

    def correction(self, logits: Array, q: QRows[Array], first: Array) -> Drawn[Array]:
        """A token from max(p - q, 0) over the full vocabulary (A19). first: int64 (N,), 48 bits."""
        ...

    def target(self, logits: Array, first: Array) -> Drawn[Array]:
        """A token from p alone (A20). logits: (N, V); first: int64 (N,), 48 bits of U."""
        ...

    def verify(
        self, logits: Array, tokens: Array, q: QRows[Array], draws: Draws[Array]
    ) -> Verdicts[Array]:
        """Judge K drafts of each of B requests, and draw what follows (A18-A20).

        logits: (B, K + 1, V), the target's after every processor, temperature included; tokens:
        int64 (B, K); q: rows (B, K). A row of p is looked at only when the drafts before it stand.
        """
        ...


_MODULES: Final = {
    "numpy": ("draftwire.kernels.cpu.backend", "NumpyBackend"),
    "torch": ("draftwire.kernels.torch.backend", "TorchBackend"),
    "triton": ("draftwire.kernels.triton.backend", "TritonBackend"),
}
_WAYS_OUT: Final = {
    "torch": "pip install 'draftwire[hf]'",
    "triton": "pip install 'draftwire[triton]'",
}


def load(name: str, device: str = "cpu") -> Backend[Any]:
    """The backend of a name; its library is imported now and not before.

    device: where it computes, as torch names it. ``triton`` computes on a GPU, or on the CPU under
    Triton's interpreter (TRITON_INTERPRET=1 in the environment before Triton is imported).
    Errors: ConfigurationError for another name, a library that is missing, a device that is not
    there.
    """
    if name not in _MODULES:
        raise ConfigurationError(f"there is no backend {name!r}: one of {', '.join(BACKENDS)}")
    module, class_name = _MODULES[name]
    try:
        backend = getattr(import_module(module), class_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] not in _WAYS_OUT:
            raise
        needs = _WAYS_OUT[missing.name.split(".")[0]]
        raise ConfigurationError(f"backend {name} needs {missing.name}: {needs}") from None
    made: Backend[Any] = backend(device)
    return made
