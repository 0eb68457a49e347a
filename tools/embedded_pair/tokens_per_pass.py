"""Tokens a target pass of a pair, on beginnings of held-out documents; an exact program's figure.

    python -m tools.embedded_pair.tokens_per_pass [--drafter FOLDER ...]

Runs the product itself, drafter in this process, on prompts that no training saw.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import HfTargetEngine
from draftwire.engines.registry import load_drafter
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.policy import policy_like
from draftwire.verifier.sampling import Sampling
from draftwire.wire.registry import Layout

from .corpus import load_corpus
from .vocabulary import BEGIN_ID, encode_documents

MODELS = Path("src/draftwire/models")
TEMPERATURES = (0.6, 1.0)
HELD_OUT = 24
PROMPT_TOKENS = 16
LONGEST = 64  # tokens of a text
WRITTEN = (  # for this, in nobody's library
    "def main(arguments):\n    ",
    'def read_lines(path):\n    """Return the lines of a file."""\n    ',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def fibonacci(n):\n    if n < 2:\n",
    "import json\n\ndef load_settings(name):\n",
    "def count_words(text):\n    counts = {}\n    for word in text.split():\n",
    'def is_prime(number):\n    """Return True if number is prime."""\n',
    'class Point:\n    """A point in the plane."""\n\n    def __init__(self, x, y):\n',
    "def connect(host, port, timeout=None):\n    sock = socket.socket()\n    try:\n",
    "def test_empty_list(self):\n    self.assertEqual(",
)
DEPTH, SUPPORT = 5, 32  # of the demo


def held_out_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Beginnings of HELD_OUT held-out documents at even distances, the same ones every time."""
    stream = encode_documents(tokenizer, load_corpus().held_out)
    starts = np.flatnonzero(stream[:-LONGEST] == BEGIN_ID)
    chosen = starts[np.linspace(0, len(starts) - 1, HELD_OUT).astype(np.int64)]
    return [[int(token) for token in stream[at : at + PROMPT_TOKENS]] for at in chosen]


def measured(target: Path, drafter: Path, support: int = SUPPORT) -> dict[str, dict[str, float]]:
    """Return tokens a target pass for each set of prompts and temperature; seeds are fixed.

    support: of sparse q, 0 for dense.
    """
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    written = [tokenizer.encode(each).ids for each in WRITTEN]
    sets = {"held_out": held_out_prompts(tokenizer), "written": written}
    engine = HfTargetEngine.from_folder(target)
    drafting = load_drafter(drafter, device="cpu", target=target)
    program = DrafterProgram(drafting, DrafterConfig(max_depth=DEPTH))
    with LocalDrafter(program, engine, max_depth=DEPTH, max_support=max(1, support)) as local:
        return {
            name: {str(at): _mean(engine, local, prompts, at, support) for at in TEMPERATURES}
            for name, prompts in sets.items()
        }


def _mean(
    engine: HfTargetEngine,
    drafter: LocalDrafter,
    prompts: list[list[int]],
    temperature: float,
    support: int,
) -> float:
    """All tokens of a set's texts by all its target passes."""
    tokens = passes = 0
    layout = Layout.SPARSE if support else Layout.DENSE
    policy = policy_like(layout, DEPTH, support, engine.vocab_size, temperature=temperature)
    for seed, prompt in enumerate(prompts):
        sampling = Sampling(temperature=temperature, seed=seed, max_tokens=LONGEST)
        with generate(engine, drafter, prompt, sampling, policy) as running:
            tokens += sum(1 for _ in running)
        passes += running.report.rounds
    return round(tokens / passes, 3)


def main() -> None:
    """Measure the pair that ships, or other drafters of its target."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.embedded_pair.tokens_per_pass",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--target", type=Path, default=MODELS / "target")
    parser.add_argument("--drafter", type=Path, nargs="+", default=[MODELS / "drafter"])
    parser.add_argument("--support", type=int, default=SUPPORT, help="of sparse q, 0 for dense")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for drafter in options.drafter:
        layout = f"sparse {options.support}" if options.support else "dense"
        print(f"{drafter}: K = {DEPTH}, {layout}, texts of at most {LONGEST} tokens")
        for name, figures in measured(options.target, drafter, options.support).items():
            told = ", ".join(f"{value:.3f} at T = {at}" for at, value in figures.items())
            print(f"  {name} prompts: {told} tokens a target pass")


if __name__ == "__main__":
    main()
