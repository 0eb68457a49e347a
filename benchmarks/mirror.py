"""Accepted drafts under a request's penalties and bans, told to the drafter and not (P34).

The embedded pair in one process, both ways with the same prompts and seeds: no time is measured.
Presence and frequency penalties, which transformers has not, are those of vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from benchmarks.common import Goal, Result
from benchmarks.pair import DEPTH, PROMPTS, SUPPORT
from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfDraftEngine, HfTargetEngine
from draftwire.engines.hf.loader import load_folder
from draftwire.engines.hf.target import HfTargetContext
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.processors import Occurrence, Processor
from draftwire.wire.registry import Layout

TEMPERATURE = 0.6
POLICY = ProposalPolicy(Layout.SPARSE, DEPTH, TEMPERATURE, SUPPORT)
LEAST_GAIN = 1.3  # of repetition_penalty 1.3


class OutputPenalty(LogitsProcessor):  # type: ignore[misc]
    """Presence and frequency penalties over the text behind the prompt."""

    def __init__(self, start: int, presence: float, frequency: float) -> None:
        self.said = Occurrence(start, presence, frequency)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Lower the scores of what the output holds."""
        output = input_ids[0, self.said.start :]
        counts = torch.bincount(output, minlength=scores.shape[1]).to(scores.dtype)
        return scores - self.said.frequency * counts - self.said.presence * (counts > 0)


class Target(HfTargetEngine):
    """The embedded target, which says its output penalty as well."""

    penalty: OutputPenalty | None = None

    def processors(self, context: HfTargetContext) -> list[Processor]:
        """Those of transformers, and the penalty."""
        own = super().processors(context)
        return own if self.penalty is None else [*own, self.penalty.said]


@dataclass(frozen=True)
class Request:
    """What a request does to p."""

    penalty: float = 1.0
    output: tuple[float, float] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def requests(common: Sequence[int]) -> dict[str, Request]:
    """By name; common: ids that the target likes to write."""
    banned = [[each] for each in common]
    biased = [[[each], -3.0] for each in common]
    return {
        "none": Request(),
        "repetition_penalty 1.1": Request(1.1),
        "repetition_penalty 1.3": Request(1.3),
        "presence_penalty 1.0": Request(output=(1.0, 0.0)),
        "frequency_penalty 0.5": Request(output=(0.0, 0.5)),
        "no_repeat_ngram_size 3": Request(options={"no_repeat_ngram_size": 3}),
        f"{len(common)} bad words": Request(options={"bad_words_ids": banned}),
        f"logit bias of -3 on {len(common)} ids": Request(options={"sequence_bias": biased}),
    }


def run(quick: bool, target: Path | None, drafter: Path | None) -> Result:
    """Measure every request both ways."""
    tokens, seeds = (64, 1) if quick else (256, 2)
    result = Result(
        f"accepted of all drafts, T={TEMPERATURE}, depth {DEPTH}, {len(PROMPTS)} prompts,"
        f" {seeds} seeds, {tokens} tokens"
    )
    loaded = load_folder(_given(target))
    prompts = [loaded.tokenizer.encode(prompt) for prompt in PROMPTS]
    engine = HfDraftEngine.from_folder(_given(drafter))
    program = DrafterProgram(engine, DrafterConfig(max_support=SUPPORT))
    identity = bytes(32)
    with ExitStack() as stack:
        plain = Target(loaded.model, loaded.tokenizer, identity=identity)
        clients = {
            mirror: stack.enter_context(LocalDrafter(program, plain, mirror=mirror))
            for mirror in (True, False)
        }
        for name, request in requests(_common(plain, prompts)).items():
            shares, passes = {}, {}
            for mirror, client in clients.items():
                reports = [
                    _text(loaded, identity, client, prompt, request, seed, tokens)
                    for prompt in prompts
                    for seed in range(seeds)
                ]
                drafted = sum(report.drafted for report in reports)
                shares[mirror] = sum(report.accepted for report in reports) / drafted
                passes[mirror] = sum(r.tokens for r in reports) / sum(r.rounds for r in reports)
            result.figures[name] = {
                way: f"{shares[mirror]:.3f} accepted, {passes[mirror]:.2f} tokens a target pass"
                for way, mirror in (("mirrored", True), ("not mirrored", False))
            } | {"ratio": round(shares[True] / shares[False], 2)}
            if request.penalty == LEAST_GAIN:
                gain = shares[False] / shares[True]
                result.goals.append(Goal(f"not mirrored / mirrored, {name}", gain, 1 / LEAST_GAIN))
    return result


def _given(folder: Path | None) -> Path:
    assert folder is not None
    return folder


def _common(target: Target, prompts: Sequence[Sequence[int]], count: int = 20) -> list[int]:
    """Return the ids that the target alone writes most often."""
    written: list[int] = []
    for seed, prompt in enumerate(prompts):
        sampling = Sampling(temperature=TEMPERATURE, seed=100 + seed, max_tokens=128)
        written += [each.token for each in generate(target, None, prompt, sampling)]
    found = sorted(set(written) - target.end_tokens, key=lambda each: (-written.count(each), each))
    return found[:count]


def _text(
    loaded: Any,
    identity: bytes,
    client: LocalDrafter,
    prompt: Sequence[int],
    request: Request,
    seed: int,
    tokens: int,
) -> Report:
    options, penalty = dict(request.options), None
    if request.output is not None:
        penalty = OutputPenalty(len(prompt), *request.output)
        options["logits_processor"] = LogitsProcessorList([penalty])
    engine = Target(loaded.model, loaded.tokenizer, identity=identity, options=options)
    engine.penalty = penalty
    sampling = Sampling(
        temperature=TEMPERATURE,
        repetition_penalty=request.penalty,
        seed=seed,
        max_tokens=tokens,
    )
    with generate(engine, client, prompt, sampling, POLICY) as text:
        for _ in text:
            continue
    return text.report
