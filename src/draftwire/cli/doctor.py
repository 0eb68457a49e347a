"""``draftwire doctor``: is this drafter of use to this target, and what to change if not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from draftwire.bounds import MOST_SECONDS
from draftwire.cli.options import (
    DEFAULT_DEPTH,
    DEPTH,
    MAX_THREADS,
    AddressType,
    Number,
    Text,
    identity_option,
    kernels_option,
    layout_option,
    model_folder,
)
from draftwire.cli.prompts import chat_options, take_chat
from draftwire.cli.security import security_options, take_security
from draftwire.errors import ExitCode
from draftwire.wire.registry import MIN_TEMPERATURE

PROMPT = "def main(arguments):\n    "


@click.command(
    epilog="""\b
Examples:
  draftwire doctor 127.0.0.1:7711 --target ./big-model
  draftwire doctor drafter-box:7711 --target ./big-model --psk-file draftwire.key --json

\b
Exit codes: 0 usable and drafting pays, 1 usable but slower than the target alone, 3 no pair or too
small limits, 4 another program, version or key, 5 no drafter there.
"""
)
@click.argument("drafter", type=AddressType(), metavar="HOST:PORT")
@model_folder("--target", help="Transformers causal LM folder.  [default: the embedded target]")
@click.option(
    "--drafter-tokenizer",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The drafter's tokenizer files, to show what the two vocabularies share.",
)
@click.option("--prompt", type=Text(), default=PROMPT, help="What acceptance is measured on.")
@chat_options
@click.option(
    "--temperature",
    type=Number(MIN_TEMPERATURE, 2.0**14),
    default=0.8,
    show_default=True,
    help="Of target and drafter.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(8, 4096),
    default=64,
    show_default=True,
    help="Tokens that are measured, with drafts and without.",
)
@click.option(
    "--depth",
    type=DEPTH,
    default=DEFAULT_DEPTH,
    show_default=True,
    help="Deepest proposal to look at.",
)
@layout_option("What acceptance is measured with.")
@click.option(
    "--deadline-ms",
    type=Number(0, MOST_SECONDS * 1e3, above=True),
    default=5000.0,
    show_default=True,
    help="How long to wait for an answer.",
)
@identity_option("--draft-identity", "the drafter")
@click.option(
    "--device", default="cpu", show_default=True, help="Where torch puts the model: cpu, cuda, ..."
)
@kernels_option("judges drafts")
@click.option(
    "--threads",
    type=click.IntRange(0, MAX_THREADS),
    default=0,
    show_default=True,
    help="CPU threads of the model; 0 leaves it to torch.",
)
@security_options("the drafter")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the lines.")
def doctor(**values: Any) -> ExitCode:
    """Examine a drafter: can it be used with this target, what would it bring, what to change.

    Checks reachability, keys, versions, tokenizer and vocabulary, limits; measures round trip,
    target and drafter, the link and acceptance with a short text; estimates tokens/s.
    """
    values["security"] = take_security(values)
    if not values["prompt"]:
        raise click.UsageError("--prompt is empty: it needs at least one character")
    values["prompt"] = take_chat(values, values["prompt"])
    from draftwire.cli.examination import DoctorOptions, examine_and_print

    return examine_and_print(DoctorOptions(**values))
