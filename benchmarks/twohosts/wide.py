"""A toy pair with a vocabulary of 129,280 ids, so that dense q's are as large as real ones.

    python -m benchmarks.twohosts.wide --host ADDRESS --psk-file FILE  (the drafter)

The drafter's rows are prepared: it draws, encodes and answers as the real program does, and no
model's time hides the link's. The target's pass takes a fixed time, in which this CPU is left
alone, as if another device computed it; what is verified is real, over the full vocabulary.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.prepared_rows import PreparedEngine, PreparedProposals
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.server import DrafterServer
from draftwire.transport.keys import PresharedKey
from draftwire.transport.tcp import listen
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.toys.models import HASH, TARGET_IDENTITY

VOCABULARY: Final = 129_280
DEPTH: Final = 5
SUPPORT: Final = 32
CONTEXT: Final = 1 << 16
POLICIES: Final = {
    Layout.SPARSE: ProposalPolicy(Layout.SPARSE, DEPTH, 1.0, support=SUPPORT),
    Layout.DENSE: ProposalPolicy(Layout.DENSE, DEPTH, 1.0),
}
_STEEPNESS: Final = 1.6  # q of the r-th likeliest id goes as r to the power of minus this
_DIFFERENCE: Final = 0.7  # of target and drafter: standard deviation of the logits' differences


@cache
def _logits() -> NDArray[np.float64]:
    """Return a row for each position of a proposal and one for the bonus; the same everywhere."""
    random = np.random.default_rng(1)
    ranks = np.array([random.permutation(VOCABULARY) for _ in range(DEPTH + 1)])
    logits: NDArray[np.float64] = -_STEEPNESS * np.log1p(ranks)
    return logits


class WideTarget:
    """A target of a fixed time a pass, whatever the number of drafts."""

    vocab_size = VOCABULARY
    max_context = CONTEXT
    identity = TARGET_IDENTITY
    tokenizer_hash = HASH
    id_map_hash = HASH
    end_tokens: frozenset[int] = frozenset()

    def __init__(self, seconds: float) -> None:
        """seconds: of a pass."""
        self._seconds = seconds
        noise = np.random.default_rng(2).normal(scale=_DIFFERENCE, size=(DEPTH + 1, VOCABULARY))
        self._rows: NDArray[np.float64] = np.exp(_logits() + noise)

    def open(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Nothing to hold."""

    def score(
        self, context: None, committed: Sequence[int], drafts: Sequence[int]
    ) -> NDArray[np.float64]:
        """Take the time of a pass, and return the prepared weights of each position."""
        time.sleep(self._seconds)
        return self._rows[: len(drafts) + 1]

    def close(self, context: None) -> None:
        """Nothing to free."""


def main(arguments: Sequence[str]) -> None:
    """Serve the drafter until standard input closes; prints where it listens."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twohosts.wide", description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--psk-file", type=Path, required=True)
    options = parser.parse_args(arguments)
    key = PresharedKey.read(options.psk_file).secret
    drafted = _logits()[:DEPTH].astype(np.float32)
    proposer = PreparedProposals(drafted, POLICIES)
    config = DrafterConfig(max_depth=DEPTH, max_support=SUPPORT)
    program = DrafterProgram(PreparedEngine(drafted, CONTEXT), config, key=key, proposer=proposer)
    program.warm_up()
    server = DrafterServer(program, listen(options.host, 0, guarded=True))

    def end_with_input() -> None:
        sys.stdin.read()
        server.stop()

    threading.Thread(target=end_with_input, daemon=True).start()
    print(f"listening on {server.address}", flush=True)
    server.run()


if __name__ == "__main__":
    main(sys.argv[1:])
