"""``draftwire qualify``: how far kernels are from the normative arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from draftwire.cli.options import POSITIVE
from draftwire.cli.progress import working
from draftwire.errors import ConfigurationError, ExitCode, ModelError
from draftwire.kernels.registry import CHOICES, kernels_for
from draftwire.wire.registry import MAX_VOCABULARY

if TYPE_CHECKING:
    from typing import Any

    from draftwire.kernels.protocol import Kernels
    from draftwire.kernels.qualify import Measured, Rows

TEXT = (
    "import os\nimport sys\n\n\ndef main(arguments):\n    for name in os.listdir(arguments[0]):\n"
)
NAMES = ("numpy", *CHOICES[1:])  # numpy: what the cpu kernels were called
PRECISION = {
    "cpu": "counts in integers; p in binary64, decisions exact wherever 48 bits of U decide",
    "torch": "counts in integers; p, its sums and decisions in binary64 on every device",
    "triton": "counts in integers; p, its sums and decisions in binary64 on the device",
}


@click.command(
    epilog="""\b
Examples:
  draftwire qualify --kernels torch
  draftwire qualify --kernels triton --device cuda --rows 64 --json
  TRITON_INTERPRET=1 draftwire qualify --kernels triton --vocab 64 --huge-vocab 0
"""
)
@click.option(
    "--kernels",
    "--backend",
    "name",
    type=click.Choice(NAMES),
    required=True,
    help="Which kernels to measure; numpy is another name of cpu.",
)
@click.option("--device", default="cpu", show_default=True, help="Where, as torch names it.")
@click.option("--rows", type=POSITIVE, default=4, show_default=True, help="Rows of each kind.")
@click.option(
    "--vocab",
    type=click.IntRange(8, MAX_VOCABULARY),
    default=512,
    show_default=True,
    help="Vocabulary size V of the made-up rows.",
)
@click.option(
    "--huge-vocab",
    type=click.IntRange(0, MAX_VOCABULARY),
    default=129280,
    show_default=True,
    help="V of the one huge row; 0 for none.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def qualify(
    name: str,
    device: str,
    rows: int,
    vocab: int,
    huge_vocab: int,
    seed: int,
    as_json: bool,
) -> ExitCode:
    """Measure how far kernels are from the normative arithmetic.

    Rows are made up to be hard (flat, peaked, near-tied, tiny p, one legal id, a huge vocabulary)
    and, where the embedded pair can be run, real. Counts and draws must be the exact ones to the
    bit, and every decision that a kernel takes the exact one: anything else ends with exit code 7.
    A decision within its error bound is left to the host ("undecided") and then exact.
    """
    if name in {"cpu", "numpy"} and device != "cpu":
        raise ConfigurationError(f"--kernels {name} computes on cpu, not on {device}")
    kernels = kernels_for("cpu" if name == "numpy" else name, device)
    with working("measuring"):
        found = [
            _measure(kernels, each, seed) for each in sample_rows(vocab, huge_vocab, rows, seed)
        ]
    sound = all(each.sound for each in found)
    if as_json:
        document = {
            "backend": name,
            "device": device,
            "precision": PRECISION[kernels.name],
            "sound": sound,
            "measured": [{**asdict(each), "sound": each.sound} for each in found],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(_as_text(f"kernels {name} on {device}: {PRECISION[kernels.name]}", found))
    return ExitCode.OK if sound else ExitCode.NOT_CONFORMING


def _measure(kernels: Kernels[Any], rows: Rows, seed: int) -> Measured:
    from draftwire.kernels.qualify import measure

    return measure(kernels, rows, seed)


def sample_rows(vocab: int, huge: int, rows: int, seed: int) -> Iterator[Rows]:
    """Yield made-up rows of each kind, then real ones where the embedded pair is there."""
    from draftwire.kernels.qualify import adversarial

    yield from adversarial(vocab, huge, rows, seed)
    try:
        yield from real_rows(rows)
    except (ImportError, ModelError) as missing:
        click.echo(f"no real rows: {missing}", err=True)


def real_rows(rows: int) -> Iterator[Rows]:
    """Target and draft logits of the embedded pair, at positions of a short program."""
    import numpy as np

    from draftwire.engines.hf import HfDraftEngine, embedded_folder, load_folder
    from draftwire.kernels.qualify import Rows

    loaded = load_folder(embedded_folder("target"))
    engines = [HfDraftEngine.from_folder(embedded_folder(role)) for role in ("target", "drafter")]
    ids = [int(token) for token in loaded.tokenizer(TEXT)["input_ids"]]
    ends = np.linspace(4, len(ids), rows).astype(int)
    made = []
    for engine in engines:
        contexts = [engine.open() for _ in ends]
        logits = [
            engine.forward([(context, ids[:end])])[0].cpu().numpy()
            for context, end in zip(contexts, ends, strict=True)
        ]
        made.append(np.stack(logits))
    yield Rows("real", *made)


def _as_text(title: str, found: list[Measured]) -> str:
    head = (
        f"{'rows of':<13} {'V':>8} {'counts differ':>14} {'draws differ':>14} {'decided wrong':>14}"
        f" {'undecided':>12} {'reach':>9} {'p':>9}"
    )
    lines = [
        title,
        "",
        head,
    ]
    lines += [
        f"{each.name:<13} {each.vocab:>8,} {_of(each.counts_differing, each.rows):>14}"
        f" {_of(each.draws_differing, each.draws):>14} {_of(each.wrong, each.decisions):>14}"
        f" {_of(each.undecided, each.decisions):>12} {each.reach:>9.1e}"
        f" {each.p_distance:>9.1e}"
        for each in found
    ]
    lines += [
        "",
        "reach: farthest from its edge that a decision was left to the host, as a probability",
        "p: total variation from softmax in 40 digits",
        "sound: equal to the bit, no decision wrong"
        if all(each.sound for each in found)
        else "NOT SOUND: see the rows above",
    ]
    return "\n".join(lines)


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"
