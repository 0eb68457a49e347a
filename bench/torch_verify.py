"""The torch backend's whole verification, beside what transformers does for the same.

From FP32 logits of the target (K + 1 rows) and q to accepted counts and the next tokens, words
included, for a whole batch. transformers' own speculative sampling starts from logits of both
models and takes one request a call: it is called once a request, on logits whose softmax is q.
vLLM's rejection sampler is measured where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch

from bench.common import Goal, Result, alternate, medians, ratio
from draftwire.kernels.backend import QRows, load
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TICKETS, Layout

VOCABULARY = 129_280
DEPTH = 5
BATCH = 4
LIMIT = 0.5  # of the faster peer
DRAFT_DISTANCE = 0.5  # standard deviation between draft and target logits: most drafts stand


def run(quick: bool) -> Result:
    """Measure with one thread."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    shape = (BATCH, DEPTH + 1, VOCABULARY)
    target = torch.randn(shape, generator=generator) * 3
    noise = torch.randn((BATCH, DEPTH, VOCABULARY), generator=generator)
    draft = target[:, :DEPTH] + noise * DRAFT_DISTANCE
    kernels = load("torch")
    q, _ = kernels.quantise(draft.reshape(-1, VOCABULARY), ProposalPolicy(Layout.DENSE, DEPTH, 1.0))
    words = torch.randint(0, TICKETS, (BATCH * DEPTH,), generator=generator)
    tokens = kernels.draw(q, words).view(BATCH, DEPTH)
    rows = QRows(VOCABULARY, None, q.counts.view(BATCH, DEPTH, VOCABULARY))
    keys = torch.randint(0, 1 << 32, (BATCH, 3, 2), generator=generator)
    turn = iter(range(1 << 30))

    def ours() -> object:
        addresses = torch.tensor([[1, next(turn), 100]] * BATCH)
        return kernels.verify(target, tokens, rows, kernels.draws(keys, addresses, DEPTH))

    ways: dict[str, Callable[[], object]] = {
        "draftwire torch": ours,
        "transformers": _transformers(target, draft, tokens),
    }
    vllm = _vllm(target, q.counts, tokens)
    if vllm is not None:
        ways["vLLM"] = vllm
    times = alternate(ways, 8 if quick else 30, warm_up=2)
    name = f"verify K={DEPTH}, batch {BATCH}, V={VOCABULARY:,}, torch backend, one thread"
    result = Result(name)
    result.figures["microseconds"] = medians(times)
    peers = [peer for peer in ways if peer != "draftwire torch"]
    faster = max(peers, key=lambda peer: ratio(times, "draftwire torch", peer))
    value = ratio(times, "draftwire torch", faster)
    result.goals.append(Goal(f"verify torch / {faster}", value, LIMIT))
    return result


def _transformers(
    target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor
) -> Callable[[], object]:
    sample = import_module("transformers.generation.utils")._speculative_sampling

    def once() -> list[object]:
        return [
            sample(tokens[row : row + 1], draft[row : row + 1], DEPTH, target[row : row + 1])
            for row in range(BATCH)
        ]

    return once


def _vllm(
    target: torch.Tensor, counts: torch.Tensor, tokens: torch.Tensor
) -> Callable[[], object] | None:
    """vLLM's rejection sampling in torch operations, the form of it that runs on a CPU."""
    if find_spec("vllm") is None:
        return None
    try:
        sampler = import_module("vllm.model_executor.layers.rejection_sampler")
    except ImportError:  # newer releases have it as kernels for a GPU alone
        return None
    reject = sampler.RejectionSampler()
    probabilities = counts.view(BATCH, DEPTH, VOCABULARY).to(torch.float32) / TICKETS
    bonus = tokens[:, :1].clone()

    def once() -> object:
        p = target[:, :DEPTH].softmax(-1)
        return reject(p, bonus, probabilities, tokens)

    return once
