"""``draftwire demo``: both programs on this machine, what it looks like and what it brings."""

from __future__ import annotations

from typing import Any

import click

from draftwire.cli.options import (
    MAX_THREADS,
    POSITIVE,
    Number,
    Seed,
    Text,
    depth_option,
    drafter_folder,
    given,
    kernels_option,
    layout_option,
    model_folder,
)
from draftwire.cli.prompts import chat_options, take_chat
from draftwire.wire.registry import MIN_TEMPERATURE

# It stops in the middle of a line: after a finished docstring the pair likes to end the document.
PROMPT = '''def read_lines(path):
    """Return the lines of a file."""
    with open(path'''
QUICK_TOKENS, QUICK_REPEATS = 24, 1


@click.command(
    epilog="""\b
Examples:
  draftwire demo
  draftwire demo --quick
  draftwire demo --prompt "class Stack:" --temperature 1.0 --layout dense
"""
)
@model_folder("--target", help="Target folder.  [default: the embedded target]")
@drafter_folder("--drafter", "Drafter folder.  [default: the embedded drafter]")
@click.option(
    "--vocabulary",
    type=click.Choice(["exact", "shared"]),
    default="exact",
    show_default=True,
    help="exact: one tokenizer on both sides; shared: drafts on the ids of equal text.",
)
@click.option("--prompt", type=Text(), default=PROMPT, help="The prompt.  [default: some code]")
@chat_options
@click.option(
    "--temperature",
    type=Number(MIN_TEMPERATURE, 2.0**14),
    default=0.6,
    show_default=True,
    help="Of target and drafter.",
)
@click.option("--seed", type=Seed(), default=1, show_default=True, help="First seed.")
@click.option("--max-tokens", type=POSITIVE, default=96, show_default=True, help="Longest text.")
@depth_option()
@layout_option()
@click.option(
    "--repeats",
    type=POSITIVE,
    default=5,
    show_default=True,
    help="Measured turns of the three ways.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    default=1,
    show_default=True,
    help="CPU threads a process.",
)
@kernels_option("quantises, draws and judges")
@click.option("--quick", is_flag=True, help="A short text and one measured turn.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the show.")
@click.pass_context
def demo(ctx: click.Context, /, **values: Any) -> None:
    """Show remote drafting on this machine alone.

    Starts a drafter as a process of its own on loopback, generates from a prompt and streams the
    text, with accepted, corrected and bonus tokens told apart; then measures tokens/s beside the
    same pair in one process and beside the target alone, turn by turn. Leaves nothing running.
    """
    quick = values.pop("quick")
    if quick:
        for name, value in (("max_tokens", QUICK_TOKENS), ("repeats", QUICK_REPEATS)):
            if not given(ctx, name):
                values[name] = value
    if not values["prompt"]:
        raise click.UsageError("--prompt is empty: it needs at least one character")
    values["prompt"] = take_chat(values, values["prompt"])
    values["shared"] = values.pop("vocabulary") == "shared"
    from draftwire.cli.demonstration import DemoOptions, show

    show(DemoOptions(**values))
