"""The torch kernels' whole verification, beside what transformers does for the same.

From FP32 logits of the target (K + 1 rows) and q to accepted drafts and the next tokens, random
words included, for a whole batch. transformers' own speculative sampling starts from logits of both
models and takes one request a call: it is called once a request, on logits whose softmax is q.
vLLM's rejection sampler is measured where it is installed, on a CPU with the kernels that its own
platform puts in the place of Triton's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.common import Goal, Result, alternate, medians, ratio
from benchmarks.peers import runs, transformers_verify, vllm_verify
from draftwire.exact.words import KeyedWords, RequestKey
from draftwire.kernels.protocol import Round
from draftwire.kernels.registry import kernels_for
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import TOTAL, Layout

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
    kernels = kernels_for("torch", "cpu")
    q, _ = kernels.quantise(draft.reshape(-1, VOCABULARY), ProposalPolicy(Layout.DENSE, DEPTH, 1.0))
    uniform24 = torch.randint(0, TOTAL, (BATCH * DEPTH,), generator=generator)
    tokens = torch.from_numpy(kernels.draw(q, uniform24.numpy())).view(BATCH, DEPTH)
    rows = kernels.host_rows(q)
    rounds = [
        Round(
            tokens[index].tolist(),
            rows[index * DEPTH : (index + 1) * DEPTH],
            index * (DEPTH + 1),
            DEPTH + 1,
            KeyedWords(RequestKey(index)),
            1,
            0,
            100,
        )
        for index in range(BATCH)
    ]
    turn = iter(range(1 << 30))

    def ours() -> object:
        now = next(turn)
        return kernels.verify(target.view(-1, VOCABULARY), [replace(r, round=now) for r in rounds])

    ways: dict[str, Callable[[], object]] = {
        "draftwire torch": ours,
        "transformers": transformers_verify(target, draft, tokens),
    }
    vllm = vllm_verify(
        target, (q.counts.to(torch.float32) / TOTAL).view(BATCH, DEPTH, VOCABULARY), tokens
    )
    missing = runs(vllm)
    if vllm is not None and missing is None:
        ways["vLLM"] = vllm
    times = alternate(ways, 8 if quick else 30, warm_up=2)
    name = f"verify K={DEPTH}, batch {BATCH}, V={VOCABULARY:,}, torch kernels, one thread"
    result = Result(name)
    result.figures["microseconds"] = medians(times)
    result.figures["vLLM's rejection sampler"] = missing or "measured"
    peers = [peer for peer in ways if peer != "draftwire torch"]
    faster = max(peers, key=lambda peer: ratio(times, "draftwire torch", peer))
    value = ratio(times, "draftwire torch", faster)
    result.goals.append(Goal(f"verify torch / {faster}", value, LIMIT))
    return result
