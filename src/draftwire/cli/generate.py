"""``draftwire generate``: the verifier on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwire.bounds import MOST_SECONDS
from draftwire.cli.options import (
    MAX_THREADS,
    POSITIVE,
    AddressType,
    LayoutChoice,
    Number,
    Seed,
    Text,
    WireType,
    depth_option,
    flag,
    given,
    identity_option,
    kernels_option,
    layout_option,
    model_folder,
)
from draftwire.cli.prompts import Prompt, chat_options, take_prompt
from draftwire.cli.ranks import rank_options, take_ranks
from draftwire.cli.security import security_options, take_security
from draftwire.cli.states import STATES, state_options, take_states
from draftwire.cli.telemetry import take_telemetry, telemetry_options
from draftwire.transport.security import SECURITY
from draftwire.verifier.parallelism import Parallelism
from draftwire.wire.registry import MAX_TEMPERATURE, MIN_TEMPERATURE, Layout, WireVersion

if TYPE_CHECKING:
    from draftwire.cli.generation import GenerateOptions

DRAFTING = (
    "depth",
    "layout",
    "wire",
    "draft_identity",
    "deadline_ms",
    "draft_temperature",
    "no_audit",
    "breaker",
    "metrics_port",
    *STATES,
    *SECURITY,
)
SEEDED_DEADLINE_MS = 500.0  # fixed and generous, so that a seed's text is repeated
TRUNCATION = ("top_p", "top_k", "min_p")


def refuse_contradictions(ctx: click.Context, values: dict[str, Any]) -> None:
    """Raise click.UsageError for options that cannot hold together, saying what to write."""
    written = [name for name in values if given(ctx, name)]
    greedy = values["temperature"] == 0
    truncating = [flag(name) for name in TRUNCATION if name in written]
    if greedy and truncating:
        raise click.UsageError(
            f"--temperature 0 is greedy and leaves nothing for {', '.join(truncating)} to do: drop"
            f" {'it' if len(truncating) == 1 else 'them'}, or set a temperature above 0"
        )
    if values["wire"] is WireVersion.V1:
        if not greedy:
            raise click.UsageError(
                "--wire v1 carries token ids only, so it is greedy: add --temperature 0, or use"
                " --wire v2"
            )
        if "layout" in written:
            raise click.UsageError(
                "--wire v1 carries no q, so it has no --layout: drop one of them"
            )
        if values["draft_temperature"]:
            raise click.UsageError("--wire v1 drafts greedily: drop --draft-temperature")
    if values["drafter"] is None and not values["rank_links"]:
        idle = [flag(name) for name in DRAFTING if name in written]
        if idle:
            raise click.UsageError(
                f"{', '.join(idle)} shape{'s' if len(idle) == 1 else ''} the drafting, and no"
                " drafter is named: add --drafter HOST:PORT"
            )


def default_draft_temperature(temperature: float) -> float:
    """Return the target's temperature, inside the range that a drafter may use (A2)."""
    return min(max(temperature, MIN_TEMPERATURE), MAX_TEMPERATURE) if temperature else 0.0


@click.command(
    epilog="""\b
Examples:
  draftwire generate --prompt "import os" --max-tokens 40
  draftwire generate --target ./big --drafter 127.0.0.1:7711 --file question.txt --top-p 0.95
  git diff | draftwire generate --target ./big --drafter [::1]:7711 --layout dense --json
  draftwire generate --target ./big --drafter 127.0.0.1:7711 --chat --prompt "Who was Ada?"

\b
The drafter away: the run is target-only and says so; its law is the same.
"""
)
@model_folder("--target", help="Transformers causal LM folder.  [default: the embedded target]")
@click.option(
    "--drafter", type=AddressType(), help="Where `draftwire serve` listens; none: target-only."
)
@click.option("--prompt", type=Text(), help="The prompt.")
@click.option(
    "--file", type=click.Path(path_type=Path), metavar="PATH", help="A file with the prompt."
)
@chat_options
@click.option(
    "--messages",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A chat: a JSON list of {role, content}; - is standard input.",
)
@click.option("--temperature", type=Number(0), default=1.0, show_default=True, help="0 is greedy.")
@click.option(
    "--top-p", type=Number(0, 1, above=True), default=1.0, show_default=True, help="1 is off."
)
@click.option("--top-k", type=click.IntRange(min=0), default=0, show_default=True, help="0 is off.")
@click.option("--min-p", type=Number(0, 1), default=0.0, show_default=True, help="0 is off.")
@click.option(
    "--repetition-penalty",
    type=Number(0, above=True),
    default=1.0,
    show_default=True,
    help="1 is off.",
)
@click.option(
    "--seed",
    type=Seed(),
    help="Makes the text repeatable.  [default: fresh random bits]",
)
@click.option("--max-tokens", type=POSITIVE, default=128, show_default=True, help="Longest text.")
@click.option("--stop", type=Text(), multiple=True, help="End before this string; may be repeated.")
@depth_option()
@layout_option()
@click.option(
    "--draft-temperature",
    type=Number(MIN_TEMPERATURE, MAX_TEMPERATURE),
    help="Temperature of q; changes acceptance, never the law.  [default: --temperature]",
)
@click.option(
    "--deadline-ms",
    type=Number(0, MOST_SECONDS * 1e3, above=True),
    help="How long a round waits for its proposal."
    "  [default: from the rounds before; 500 with --seed]",
)
@click.option(
    "--wire",
    type=WireType(),
    metavar="v1|v2",
    default="v2",
    show_default=True,
    help="v1 is greedy and sends ids only; both sides must name it.",
)
@identity_option("--draft-identity", "the drafter")
@click.option(
    "--no-audit",
    is_flag=True,
    help="Do not recompute each draft's draw (docs/internals/audit.md).",
)
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
@click.option(
    "--breaker/--no-breaker",
    default=None,
    help="Pause drafting that does not pay; then a seed does not repeat its text."
    "  [default: on, off with --seed]",
)
@state_options
@rank_options
@click.option(
    "--rank-link",
    "rank_links",
    type=AddressType(),
    multiple=True,
    help="Where a rank's own drafter rank listens: once a rank, instead of --drafter.",
)
@click.option(
    "--ownership",
    "--parallelism",
    "ownership",
    type=click.Choice(["vocabulary", "requests"]),
    help="What a rank judges: its columns, or whole requests.  [default: vocabulary]",
)
@security_options("the drafter")
@telemetry_options("error")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: text, tokens, report.")
@click.pass_context
def generate(ctx: click.Context, /, **values: Any) -> None:
    """Generate text with a target; a drafter elsewhere proposes, this side verifies.

    The text has exactly the law of the target alone, whatever the network does and for any q that
    its token was drawn from; a token that does not follow from its q and key is not used
    (docs/internals/audit.md: what a lying drafter can still do). It goes to standard output; notes
    and the report go to standard error.
    """
    refuse_contradictions(ctx, values)
    options = options_of(values)
    from draftwire.cli.generation import generate_and_print

    generate_and_print(options)


def options_of(values: dict[str, Any]) -> GenerateOptions:
    """Turn the parsed values into the options, reading the prompt."""
    values = dict(values)
    values["security"] = take_security(values)
    values["telemetry"] = take_telemetry(values)
    values["states"] = take_states(values)
    values["ranks"] = ranks = take_ranks(values, ("rank_links", "ownership"))
    _take_links(values)
    if values["deadline_ms"] is None and (values["seed"] is not None or values["rank_links"]):
        values["deadline_ms"] = SEEDED_DEADLINE_MS
    if values["breaker"] is None:
        values["breaker"] = values["seed"] is None
    wanted = values.pop("draft_temperature")
    leads = ranks is None or ranks.leads
    prompt = take_prompt(values) if leads else _elsewhere(values)
    stop: Sequence[str] = values.pop("stop")
    if not all(stop):
        raise click.UsageError("--stop needs a string that is not empty")
    if values["wire"] is WireVersion.V1:
        values["layout"] = LayoutChoice(Layout.IDS_ONLY, 0)
    from draftwire.cli.generation import GenerateOptions

    return GenerateOptions(
        prompt=prompt,
        stop=tuple(stop),
        draft_temperature=default_draft_temperature(values["temperature"])
        if wanted is None
        else wanted,
        audit=not values.pop("no_audit"),
        **values,
    )


def _elsewhere(values: dict[str, Any]) -> Prompt:
    """Take the prompt's options out of ``values`` on a rank that follows: rank 0 has it."""
    for name in ("prompt", "file", "messages", "chat", "system"):
        del values[name]
    return Prompt("")


def _take_links(values: dict[str, Any]) -> None:
    """Check where the ranks' drafters are, and who owns what. Raises click.UsageError."""
    links, ranks = values["rank_links"], values["ranks"]
    values["ownership"] = Parallelism[(values["ownership"] or "vocabulary").upper()]
    if not links:
        return
    if values["drafter"] is not None:
        raise click.UsageError("--drafter and --rank-link both name a drafter: keep one of them")
    if len(links) != ranks.size:
        raise click.UsageError(
            f"{len(links)} --rank-link for {ranks.size} ranks: name one a rank, in their order"
        )
