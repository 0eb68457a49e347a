"""``draftwire serve``: the drafter on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from draftwire.bounds import MOST_SECONDS
from draftwire.cli.limits import limit_options, take_limits
from draftwire.cli.options import (
    COUNT,
    DEFAULT_PORT,
    DEPTH,
    MAX_THREADS,
    HostType,
    LayoutSetType,
    Number,
    WireType,
    drafter_folder,
    given,
    identity_option,
    kernels_option,
    model_folder,
)
from draftwire.cli.ranks import rank_options, take_ranks
from draftwire.cli.security import security_options, take_security
from draftwire.cli.telemetry import take_telemetry, telemetry_options
from draftwire.drafter.config import MOST_CONTEXT
from draftwire.transport.tcp import is_loopback
from draftwire.wire.registry import MAX_VOCABULARY, LayoutSet, WireVersion

MAX_BATCH: Final = 4096
MOST_MIB: Final = 2.0**40


@click.command(
    epilog="""\b
Examples:
  draftwire serve
  draftwire serve --model ./small-model --port 7711 --max-sessions 8
  draftwire serve --model ./small-model --vocabulary shared --target-tokenizer ./big-tokenizer
  draftwire serve --metrics-port 9711 --log-format json
  draftwire serve --host 0.0.0.0 --psk-file draftwire.key     (draftwire keygen draftwire.key)
  ssh -N -L 7711:127.0.0.1:7711 drafter-box     (on the target's machine, to reach it from there)
"""
)
@drafter_folder(
    "--model", "Folder of a causal LM or a DSpark drafter.  [default: the embedded drafter]"
)
@click.option(
    "--host",
    type=HostType(),
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; one that others can reach needs --psk-file or --tls-...",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0 takes any free port; the address is printed.",
)
@click.option(
    "--max-connections",
    type=COUNT,
    default=64,
    show_default=True,
    help="Verifiers at once; the longest idle one is evicted for another.",
)
@click.option(
    "--max-sessions",
    type=click.IntRange(1, 65535),
    default=4,
    show_default=True,
    help="Open sessions of one verifier.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, MAX_BATCH),
    default=32,
    show_default=True,
    help="Sessions of all verifiers that are drafted together; the rest takes turns.",
)
@click.option(
    "--max-reply-mib",
    type=Number(0, MOST_MIB, above=True),
    show_default="half of the memory",
    help="What answers may hold in all, kept or not sent yet; more is declined.",
)
@click.option(
    "--kept-prefix-mib",
    type=Number(0, MOST_MIB),
    default=512,
    show_default=True,
    help="What the model may hold of texts that are over, for the next turn of a chat; 0: nothing.",
)
@click.option(
    "--max-context",
    type=click.IntRange(2, MOST_CONTEXT),
    show_default="262144, or the model's",
    help="Tokens of a text that is drafted for; the last ones that the model can read are read.",
)
@click.option("--max-depth", type=DEPTH, default=8, show_default=True, help="Deepest proposal.")
@click.option(
    "--max-support",
    type=click.IntRange(1, MAX_VOCABULARY),
    default=256,
    show_default=True,
    help="Widest sparse row.",
)
@click.option(
    "--layouts",
    type=LayoutSetType(),
    metavar="dense,sparse",
    default="dense,sparse",
    show_default=True,
    help="How q may travel.",
)
@click.option(
    "--wire",
    type=WireType(),
    metavar="v1|v2",
    default="v2",
    show_default=True,
    help="v1 is greedy and sends ids only; both sides must name it.",
)
@click.option(
    "--vocabulary",
    type=click.Choice(["exact", "shared"]),
    default="exact",
    show_default=True,
    help="exact: one tokenizer on both sides; shared: drafts on the ids of equal text.",
)
@click.option(
    "--target-tokenizer",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The target's tokenizer files, for --vocabulary shared; weights are not needed.",
)
@model_folder(
    "--target-weights",
    help="The target's folder, for what a DSpark checkpoint leaves there.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(1, MAX_VOCABULARY),
    help="V of the target, where its model has more or fewer logits than this one.",
)
@identity_option("--target-identity", "a target")
@click.option(
    "--device", default="cpu", show_default=True, help="Where torch puts the model: cpu, cuda, ..."
)
@kernels_option("quantises and draws")
@click.option(
    "--threads",
    type=click.IntRange(0, MAX_THREADS),
    default=0,
    show_default=True,
    help="CPU threads of the model; 0 leaves it to torch.",
)
@rank_options
@click.option(
    "--rank-links",
    is_flag=True,
    help="Every rank answers with its shard, on --port plus its rank.",
)
@limit_options
@security_options("the verifier")
@telemetry_options("info")
@click.option(
    "--drain-seconds",
    type=Number(0, MOST_SECONDS),
    default=30.0,
    show_default=True,
    help="How long open sessions may go on after SIGTERM.",
)
@click.option(
    "--until-stdin-closes",
    is_flag=True,
    help="End when standard input ends: for a parent that must leave nothing behind.",
)
@click.pass_context
def serve(ctx: click.Context, /, **values: Any) -> None:
    """Serve a small model as drafter: propose tokens, each with the q it was drawn from.

    Listens on loopback alone, unless verifiers have to prove who they are: with a key, which hides
    nothing on the way, or with certificates both ways (TLS 1.3), which hide the text too. Or let
    ssh carry the port.
    """
    host = values["host"]
    values["ranks"] = take_ranks(values, ("rank_links",))
    values["security"] = take_security(values)
    values["telemetry"] = take_telemetry(values)
    if values["security"] is None and not is_loopback(host):
        raise click.UsageError(
            f"--host {host} is not loopback, and this port authenticates no peer: add --psk-file"
            " FILE (draftwire keygen makes one), or --tls-cert, --tls-key and --tls-ca, or keep"
            " 127.0.0.1 and reach it through ssh -N -L PORT:127.0.0.1:PORT THIS-MACHINE"
        )
    if values["wire"] is WireVersion.V1:
        for name in ("layouts", "max_support"):
            if given(ctx, name):
                raise click.UsageError(
                    f"--wire v1 carries no q, so --{name.replace('_', '-')} means nothing: drop it"
                )
        values["layouts"] = LayoutSet.IDS_ONLY
    values["limits"] = take_limits(values)
    shared = values.pop("vocabulary") == "shared"
    if shared and values["target_tokenizer"] is None:
        raise click.UsageError(
            "--vocabulary shared needs the target's tokenizer: add --target-tokenizer FOLDER"
        )
    if not shared and values["target_tokenizer"] is not None:
        raise click.UsageError("--target-tokenizer is of --vocabulary shared: add that, or drop it")
    if values["ranks"] is not None and (shared or values["vocab_size"]):
        raise click.UsageError(
            "over ranks a drafter serves its own vocabulary: drop --vocabulary"
            " shared and --vocab-size, or --ranks"
        )
    from draftwire.cli.server import ServeOptions, serve_until_told

    serve_until_told(ServeOptions(**values))
