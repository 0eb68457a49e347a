"""A drafting engine and its proposals whose every row is there already: no model's time is in them.

They draw with the real words, encode and are audited as the real ones are. What is left out is the
computing of rows, and with it that one row waits for the token of the row before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwire.drafter.engine import DraftEngine
from draftwire.drafter.propose import DraftJob, ProposalSource
from draftwire.exact.words import ProposalWords
from draftwire.kernels import cpu
from draftwire.kernels.cpu.quantise_loops import sample_inverse_cdf
from draftwire.kernels.jit import compiled
from draftwire.kernels.rows import LINE_HEAD, QRow, SparseRows
from draftwire.kernels.words import fill_words, first_words, halves
from draftwire.session.answers import Draft
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Adaptation, Layout, Status


@dataclass
class PreparedContext:
    """Counts tokens and holds nothing."""

    length: int = 0


class PreparedEngine:
    """A drafting engine that counts tokens and gives prepared rows, the first for the first job."""

    identity = b"d" * 32
    tokenizer_hash = bytes(32)
    id_map_hash = bytes(32)
    adaptation = Adaptation.NATIVE

    def __init__(self, logits: NDArray[np.float32], max_context: int) -> None:
        """logits: binary32 (rows, V); of a batch, the n-th gets the n-th row, and then again."""
        self._rows = logits
        self.vocab_size = logits.shape[1]
        self.max_context = max_context

    def open(self) -> PreparedContext:
        """Return an empty context."""
        return PreparedContext()

    def close(self, context: PreparedContext) -> None:
        """Nothing to free."""

    def truncate(self, context: PreparedContext, length: int) -> None:
        """Count back."""
        context.length = length

    def forward(
        self, batch: Sequence[tuple[PreparedContext, Sequence[int]]]
    ) -> NDArray[np.float32]:
        """Count on, and return the prepared rows."""
        for context, tokens in batch:
            context.length += len(tokens)
        return np.resize(self._rows, (len(batch), self.vocab_size))


class PreparedProposals:
    """Draws every job's tokens from rows of counts that are there; stands in for ``propose``.

    Sparse rows lie in one piece, as those of ``propose`` do, and are drawn from in one call: unlike
    those of a model they do not wait for one another's tokens.
    """

    def __init__(
        self, logits: NDArray[np.float32], policies: Mapping[Layout, ProposalPolicy]
    ) -> None:
        """Quantise the rows of each layout once; logits: (rows, V), the depth or more of them."""
        self._rows: dict[Layout, list[QRow]] = {}
        self._pieces: dict[Layout, SparseRows] = {}
        for layout, policy in policies.items():
            self._rows[layout] = [cpu.quantise(row, policy) for row in logits[: policy.depth]]
            if layout is Layout.SPARSE:
                self._pieces[layout] = piece = SparseRows.room(
                    logits.shape[1], policy.depth, policy.support
                )
                for row in self._rows[layout]:
                    piece.append(row)
                draw_all(piece, 0, 1, 1, 0)  # compiled now, so that no round pays for it

    def __call__(
        self,
        engine: DraftEngine[PreparedContext],
        jobs: Sequence[DraftJob[PreparedContext]],
        source: ProposalSource = ProposalWords,
    ) -> list[Draft | Status]:
        """Draw with the real words, which the verifier audits."""
        drafts: list[Draft | Status] = []
        for job in jobs:
            policy, first = job.policy, job.first_position
            depth = policy.depth
            addressed = job.proposal_key, job.generation, job.round, first
            piece = self._pieces.get(policy.layout)
            if piece is not None and piece.length == depth:
                drafts.append(Draft(draw_all(piece, *addressed), piece))
            else:
                rows = self._rows[policy.layout][:depth]
                words = first_words(*addressed, depth)
                tokens = [cpu.draw(row, word) for row, word in zip(rows, words, strict=True)]
                drafts.append(Draft(tokens, rows))
            job.context.length += len(job.feed) + depth - 1
        return drafts


def draw_all(
    rows: SparseRows, proposal_key: int, generation: int, round_: int, first_position: int
) -> list[int]:
    """The tokens of rows that do not wait for one another: each drawn with its word (A13, A16).

    Errors: ArithmeticRefusalError OUT_OF_RANGE, as ``proposal_words``. A token of a row that is no
    distribution means nothing.
    """
    tokens = np.empty(rows.length, np.int32)
    low, high = halves(proposal_key, generation, round_, first_position, rows.length)
    _draw_all(rows.block, low, high, generation, round_, first_position, tokens)
    drawn: list[int] = tokens.tolist()
    return drawn


@compiled
def _draw_all(
    lines: NDArray[np.int32],
    low: int,
    high: int,
    generation: int,
    round_: int,
    first_position: int,
    tokens: NDArray[np.int32],
) -> None:
    support = lines.shape[1] - LINE_HEAD >> 1
    words = np.empty(len(tokens), np.int64)
    fill_words(low, high, generation, round_, first_position, words)
    for row in range(len(tokens)):
        line = lines[row]
        begin = LINE_HEAD + support
        at = sample_inverse_cdf(line[begin : begin + line[0]], words[row])
        tokens[row] = line[LINE_HEAD + max(at, 0)]
