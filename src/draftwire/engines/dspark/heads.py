"""The small heads of a DSpark drafter: the Markov bias, and the confidence.

Both see the token before the one that is drawn and nothing of it, so they may decide whether it is
admitted (A23). Source: DeepSpec, "DSpark" (arXiv 2607.05147).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwire.engines.dspark.shape import DraftShape, MarkovKind


class MarkovHead(nn.Module):
    """A bias of low rank on the logits of a row, from the token before it.

    vanilla: W2 W1[x]. gated: W2 (sigmoid(G [h; W1[x]]) * W1[x]). rnn: a state s goes from row to
    row; (g, c, o) = J [s; W1[x]; h], s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c), W2 tanh(o).
    """

    def __init__(self, shape: DraftShape) -> None:
        """Make the head of a shape whose kind is not NONE."""
        super().__init__()
        rank, width = shape.markov_rank, shape.hidden_size
        self.kind = shape.markov_kind
        self.markov_w1 = nn.Embedding(shape.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, shape.vocab_size, bias=False)
        if self.kind is MarkovKind.GATED:
            self.gate_proj = nn.Linear(width + rank, rank)
        if self.kind is MarkovKind.RNN:
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def before(self, tokens: Tensor) -> Tensor:
        """W1 of the tokens before: (..., rank)."""
        found: Tensor = self.markov_w1(tokens)
        return found

    def first_state(self, like: Tensor) -> Tensor:
        """The state of the first row: zero, (..., rank)."""
        return like.new_zeros(*like.shape[:-1], self.markov_w1.embedding_dim)

    def forward(self, state: Tensor, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bias (..., V) of a row and the state of the next.

        state: (..., rank), of use to an RNN alone. tokens: int64 (...), before the row. hidden:
        (..., d), of the row.
        """
        seen = self.before(tokens)
        if self.kind is MarkovKind.GATED:
            seen = torch.sigmoid(self.gate_proj(torch.cat([hidden, seen], -1))) * seen
        elif self.kind is MarkovKind.RNN:
            gate, candidate, output = self.joint_proj(torch.cat([state, seen, hidden], -1)).chunk(
                3, -1
            )
            gate = torch.sigmoid(gate)
            state = gate * state + (1 - gate) * torch.tanh(candidate)
            seen = torch.tanh(output)
        bias: Tensor = self.markov_w2(seen)
        return bias, state


class ConfidenceHead(nn.Module):
    """How likely the draft of a row is accepted, if those before it are: a logit."""

    def __init__(self, shape: DraftShape) -> None:
        """Make the head of a shape."""
        super().__init__()
        more = shape.markov_rank if shape.confidence_reads_markov else 0
        self.proj = nn.Linear(shape.hidden_size + more, 1)

    def forward(self, hidden: Tensor, before: Tensor | None) -> Tensor:
        """Return the logit (...): hidden (..., d), before: ``MarkovHead.before``, where read."""
        seen = hidden if before is None else torch.cat([hidden, before], -1)
        found: Tensor = self.proj(seen)[..., 0]
        return found
