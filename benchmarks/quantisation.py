"""Quantise and draw one position, beside what torch does for the same: softmax and multinomial."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.common import Goal, Result, alternate, medians, ratio
from draftwire.exact.words import Address, Domain, ProposalWords
from draftwire.kernels import cpu
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

VOCABULARIES = (129_280, 262_144)
LIMIT = 0.3  # of torch.multinomial(torch.softmax(logits))
ROWS = 8


def run(quick: bool) -> Result:
    """Measure with one thread; logits look like a model's: a few peaks over a broad floor."""
    torch.set_num_threads(1)
    result = Result("quantise and draw one position, one thread")
    for vocab in VOCABULARIES:
        _measure(result, vocab, 40 if quick else 200)
    return result


def _measure(result: Result, vocab: int, repeats: int) -> None:
    generator = np.random.default_rng(vocab)
    rows = generator.normal(0.0, 3.0, (ROWS, vocab)).astype(np.float32)
    rows[:, :64] += 8.0
    tensors = torch.from_numpy(rows)
    words = ProposalWords(7)
    word = next(words.words(Address(1, 1, 1, Domain.PROPOSAL)))
    dense = ProposalPolicy(layout=Layout.DENSE, depth=5, temperature=1.0)
    sparse = ProposalPolicy(layout=Layout.SPARSE, depth=5, temperature=1.0, support=32)
    turn = iter(range(1 << 30))

    def ours(policy: ProposalPolicy) -> int:
        return cpu.draw(cpu.quantise(rows[next(turn) % ROWS], policy), word)

    def row() -> torch.Tensor:
        return tensors[next(turn) % ROWS]

    times = alternate(
        {
            "draftwire dense": lambda: ours(dense),
            "draftwire sparse:32": lambda: ours(sparse),
            "torch softmax + multinomial": lambda: torch.multinomial(torch.softmax(row(), 0), 1),
            "torch softmax alone": lambda: torch.softmax(row(), 0),
        },
        repeats,
    )
    result.figures[f"V={vocab:,}, microseconds"] = medians(times)
    peer = "torch softmax + multinomial"
    for layout in ("dense", "sparse:32"):
        value = ratio(times, f"draftwire {layout}", peer)
        result.goals.append(Goal(f"quantise+draw {layout}, V={vocab:,} / {peer}", value, LIMIT))
