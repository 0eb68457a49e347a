"""Train, distil, export and measure the embedded pair by one command."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from . import measure, shapes
from .card import write_card
from .corpus import LICENCE, Corpus, load_corpus
from .optimiser import Budget
from .phases import Phase, distillation_loss, next_token_loss, random_windows, run_phase
from .vocabulary import VOCABULARY_SIZE, encode_documents, train_tokenizer

# Shares of the training time. The rest of --minutes goes to the corpus and the measuring.
SHARES = {"shallow": 0.46, "deep": 0.30, "drafter": 0.05, "sampling": 0.03, "distilled": 0.16}
MEASURING_SHARE = 0.05
SAMPLED_ROWS = 96
SAMPLED_SHARE = 0.34


@dataclass
class Material:
    """Everything the phases share: text as tokens, the tokenizer, and where to export to."""

    corpus: Corpus
    tokenizer: Tokenizer
    training: np.ndarray
    held_out: np.ndarray
    rng: np.random.Generator
    output: Path

    def quick(self) -> Tensor:
        """A small fixed piece of held-out text for the checks during training."""
        return measure.windows(self.held_out, 512, 16)

    def keep(self, role: str, model: LlamaForCausalLM) -> None:
        """Export a model that is the best so far of its role."""
        shapes.export(model, self.tokenizer, self.output / role)


def prepare(output: Path, seed: int) -> Material:
    """Read the corpus, learn the vocabulary, encode both splits."""
    corpus = load_corpus()
    tokenizer = train_tokenizer(corpus.training)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(corpus.training))
    training = encode_documents(tokenizer, [corpus.training[i] for i in order])
    held_out = encode_documents(tokenizer, corpus.held_out)
    print(
        f"{corpus.files} files, {corpus.characters} characters, {len(corpus.training)} documents, "
        f"{len(training)} training and {len(held_out)} held-out tokens",
        flush=True,
    )
    return Material(corpus, tokenizer, training, held_out, rng, output)


def mixed_widths(material: Material, step: int) -> Tensor:
    """2048 tokens: five steps of 512 wide windows, then one of 1024 wide ones."""
    width = 1024 if step % 6 == 5 else 512
    return random_windows(material.training, material.rng, width, 2048 // width)


def train_shallow(
    material: Material, seconds: Callable[[str], float], start: Path | None
) -> tuple[LlamaForCausalLM, dict[str, Any]]:
    """Train the shallow model, fresh or from an interrupted run's target; it and its figures."""
    shallow = shapes.load_shallow(start) if start else shapes.new_model(shapes.SHALLOW_LAYERS)
    phase = Phase(
        "shallow",
        lambda step: random_windows(material.training, material.rng, 256, 8),
        next_token_loss,
        matrix_rate=0.02,
        vector_rate=0.004,
        budget=Budget(seconds("shallow"), floor=0.25),
        score=partial(measure.mean_loss, tokens=material.quick()),
        keep=lambda model: material.keep("target", shapes.deepen(model)),
    )
    return shallow, run_phase(phase, shallow)


def train_deep(
    material: Material, seconds: Callable[[str], float], target: LlamaForCausalLM
) -> dict[str, Any]:
    """Train all of the target's blocks; the phase's figures."""
    phase = Phase(
        "deep",
        partial(mixed_widths, material),
        next_token_loss,
        matrix_rate=0.006,
        vector_rate=0.001,
        budget=Budget(seconds("deep"), decay=0.8),
        score=partial(measure.mean_loss, tokens=material.quick()),
        keep=partial(material.keep, "target"),
    )
    return run_phase(phase, target)


def sample_rows(material: Material, target: LlamaForCausalLM, seconds: float) -> np.ndarray:
    """Text of the target's own, one stream, for about ``seconds``; prompts from training text."""
    start = time.monotonic()
    rows: list[Tensor] = []
    while not rows or time.monotonic() - start < seconds:
        prompts = random_windows(material.training, material.rng, 12, SAMPLED_ROWS)
        rows.append(measure.sample(target, prompts, 256, seed=len(rows)))
    return torch.cat(rows).numpy()


def train_drafter(
    material: Material,
    seconds: Callable[[str], float],
    source: LlamaForCausalLM,
    target: LlamaForCausalLM,
) -> tuple[dict[str, Any], int]:
    """Start the drafter from ``source``, warm it up on text, distil it; figures, tokens sampled."""
    quick = material.quick()
    drafter = shapes.new_drafter(source)
    reports = {}
    phase = Phase(
        "drafter",
        lambda step: random_windows(material.training, material.rng, 256, 8),
        next_token_loss,
        matrix_rate=0.02,
        vector_rate=0.003,
        budget=Budget(seconds("drafter"), floor=0.5),
        score=lambda model: 1.0 - measure.acceptance(target, model, quick)["1.0"],
        keep=partial(material.keep, "drafter"),
    )
    reports["drafter"] = run_phase(phase, drafter)
    sampled = sample_rows(material, target, seconds("sampling"))

    def batches(step: int) -> Tensor:
        if material.rng.random() < SAMPLED_SHARE:
            return torch.from_numpy(material.rng.permutation(sampled)[:8])
        return mixed_widths(material, step)

    phase = Phase(
        "distilled",
        batches,
        distillation_loss(target),
        matrix_rate=0.01,
        vector_rate=0.002,
        budget=Budget(seconds("distilled"), decay=0.8),
        score=phase.score,
        keep=phase.keep,
    )
    reports["distilled"] = run_phase(phase, drafter)
    return reports, sampled.size


def folder_bytes(folder: Path) -> int:
    """The size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def model_report(model: LlamaForCausalLM, folder: Path, tokens: Tensor) -> dict[str, Any]:
    """Size, loss and cost of one exported model."""
    losses = measure.loss_report(model, tokens)
    times = measure.pass_milliseconds(model)
    return {
        "layers": model.config.num_hidden_layers,
        "parameters": model.num_parameters(),
        "bytes": folder_bytes(folder),
        "loss": {name: round(value, 4) for name, value in losses.items()},
        "pass_milliseconds": {name: round(value, 2) for name, value in times.items()},
    }


def measured_report(material: Material) -> dict[str, Any]:
    """Load the exported folders again and measure them on held-out text."""
    folders = {role: material.output / role for role in ("target", "drafter")}
    target, drafter = (AutoModelForCausalLM.from_pretrained(f).eval() for f in folders.values())
    tokens = measure.windows(material.held_out, 1024, 40)
    prompts = measure.windows(material.held_out, 8, 64)
    own = measure.sample(target, prompts, 256, seed=2**20)
    report = {
        "target": model_report(target, folders["target"], tokens),
        "drafter": model_report(drafter, folders["drafter"], tokens),
        "acceptance_held_out": measure.acceptance(target, drafter, tokens[:, :512]),
        "acceptance_sampled": measure.acceptance(target, drafter, own),
        "samples": measure.document_lengths(own),
        "corpus": {
            "source": material.corpus.source,
            "licence": LICENCE,
            "files": material.corpus.files,
            "characters": material.corpus.characters,
            "training_tokens": len(material.training),
            "held_out_tokens": len(material.held_out),
        },
    }
    stripped = shapes.without_added_blocks(target)
    report["target"]["loss_without_added_blocks"] = round(measure.mean_loss(stripped, tokens), 4)
    for row in own[:6]:
        text = material.tokenizer.decode(row.tolist(), skip_special_tokens=False)
        print("-" * 60, text, sep="\n")
    return report


def earlier_runs(folder: Path | None) -> list[dict[str, Any]]:
    """What the run that left this target folder, and those before it, recorded of themselves."""
    path = folder.parent / "report.json" if folder else None
    if path is None or not path.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return runs


def train(material: Material, options: argparse.Namespace, left: float) -> dict[str, Any]:
    """Run the phases within ``left`` seconds; this run's record for the report.

    A run that goes on from a deep target has no shallow phase; its share goes to the deep one.
    """
    shares = dict(SHARES)
    if options.deep_from:
        shares["deep"] += shares.pop("shallow")

    def seconds(share: str) -> float:
        return shares[share] * left

    phases = {}
    if options.deep_from:
        target = source = LlamaForCausalLM.from_pretrained(options.deep_from).float()
    else:
        source, phases["shallow"] = train_shallow(material, seconds, options.shallow_from)
        target = shapes.deepen(source)
    phases["deep"] = train_deep(material, seconds, target)
    drafter_phases, sampled_tokens = train_drafter(material, seconds, source, target)
    return {
        "minutes": options.minutes,
        "seed": options.seed,
        "threads": options.threads,
        "continues": "deep" if options.deep_from else "shallow" if options.shallow_from else None,
        "phases": phases | drafter_phases,
        "sampled_tokens": sampled_tokens,
    }


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.embedded_pair", description=__doc__)
    parser.add_argument("--minutes", type=float, default=45.0, help="wall-clock time in all")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("src/draftwire/models"))
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--shallow-from", type=Path, help="target of a run stopped while shallow")
    start.add_argument("--deep-from", type=Path, help="target of a run past its shallow phase")
    return parser.parse_args()


def main() -> None:
    """Prepare, train, measure, and write the card and the report."""
    options = parse_options()
    begun = time.monotonic()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    material = prepare(options.output, options.seed)
    left: float = 60 * options.minutes * (1 - MEASURING_SHARE) - (time.monotonic() - begun)
    runs = [*earlier_runs(options.deep_from or options.shallow_from)]
    runs.append(train(material, options, left))
    report = measured_report(material)
    report["runs"] = runs
    report["shape"] = {
        "width": shapes.WIDTH,
        "layers_shallow": shapes.SHALLOW_LAYERS,
        "vocabulary": VOCABULARY_SIZE,
    }
    text = json.dumps(report, indent=2) + "\n"
    (options.output / "report.json").write_text(text, encoding="utf-8")
    (options.output / "README.md").write_text(write_card(report), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
