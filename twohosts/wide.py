"""A toy pair with a vocabulary of 129,280 ids, so that dense q's are as large as real ones.

    python -m twohosts.wide --host ADDRESS --psk-file FILE      (the drafter; until stdin closes)

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

from bench.loopback import PreparedContext
from draftwire.drafter.engine import DraftEngine
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.drafter.propose import Draft, DraftJob, ProposalSource
from draftwire.drafter.serve import DrafterServer
from draftwire.exact.words import ProposalWords
from draftwire.kernels import cpu
from draftwire.kernels.rows import QRow
from draftwire.kernels.words import first_words
from draftwire.transport.keys import PresharedKey
from draftwire.transport.tcp import listen
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Adaptation, Layout, Status

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
_HASH: Final = bytes(32)


@cache
def _logits() -> NDArray[np.float64]:
    """Return a row for each position of a proposal and one for the bonus; the same everywhere."""
    random = np.random.default_rng(1)
    ranks = np.array([random.permutation(VOCABULARY) for _ in range(DEPTH + 1)])
    logits: NDArray[np.float64] = -_STEEPNESS * np.log1p(ranks)
    return logits


class WideDrafter:
    """What a drafter says of a model that it does not have: every row is there already."""

    vocab_size = VOCABULARY
    max_context = CONTEXT
    identity = b"d" * 32
    tokenizer_hash = _HASH
    id_map_hash = _HASH
    adaptation = Adaptation.NATIVE

    def open(self) -> PreparedContext:
        """Return an empty context."""
        return PreparedContext()

    def close(self, context: PreparedContext) -> None:
        """Nothing to free."""

    def rewind(self, context: PreparedContext, length: int) -> None:
        """Count back."""
        context.length = length

    def extend(self, batch: Sequence[tuple[PreparedContext, Sequence[int]]]) -> NDArray[np.float32]:
        """Count on, and return the first row for each."""
        for context, tokens in batch:
            context.length += len(tokens)
        return np.repeat(_logits()[:1].astype(np.float32), len(batch), axis=0)


class PreparedRows:
    """Draws every job's tokens from rows of counts that are there; stands in for ``propose``."""

    def __init__(self) -> None:
        """Quantise the rows of each layout once."""
        logits = _logits()[:DEPTH].astype(np.float32)
        self._rows: dict[Layout, list[QRow]] = {
            layout: [cpu.quantise(row, policy) for row in logits]
            for layout, policy in POLICIES.items()
        }

    def __call__(
        self,
        engine: DraftEngine[PreparedContext],
        jobs: Sequence[DraftJob[PreparedContext]],
        source: ProposalSource = ProposalWords,
    ) -> list[Draft | Status]:
        """Draw with the real words, which the verifier audits."""
        drafts: list[Draft | Status] = []
        for job in jobs:
            depth = job.policy.depth
            words = first_words(
                job.proposal_key, job.generation, job.round, job.first_position, depth
            )
            rows = self._rows[job.policy.layout][:depth]
            tokens = [cpu.draw(row, word) for row, word in zip(rows, words, strict=True)]
            drafts.append(Draft(tokens, rows))
            job.context.length += len(job.feed) + depth - 1
        return drafts


class WideTarget:
    """A target of a fixed time a pass, whatever the number of drafts."""

    vocab_size = VOCABULARY
    max_context = CONTEXT
    identity = b"t" * 32
    tokenizer_hash = _HASH
    id_map_hash = _HASH
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
    parser = argparse.ArgumentParser(prog="python -m twohosts.wide", description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--psk-file", type=Path, required=True)
    options = parser.parse_args(arguments)
    key = PresharedKey.read(options.psk_file).secret
    config = DrafterConfig(max_depth=DEPTH, max_support=SUPPORT)
    program = DrafterProgram(WideDrafter(), config, key=key, proposer=PreparedRows())
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
