"""What ``draftwire generate`` does once its options are known to make sense."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwire.cli.drafters import remote_drafter
from draftwire.cli.main import failure
from draftwire.cli.models import Target
from draftwire.cli.options import DepthChoice, LayoutChoice
from draftwire.cli.output import Notes, TextStream, line, report_lines, wants_colour
from draftwire.cli.progress import Counting
from draftwire.cli.prompts import Prompt
from draftwire.cli.ranks import RankOptions, joined_ranks
from draftwire.cli.states import StateOptions
from draftwire.cli.telemetry import TelemetryOptions, serving_metrics
from draftwire.errors import ConfigurationError, TransportError
from draftwire.kernels.registry import kernels_for
from draftwire.telemetry.log_handler import logging_to
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.generate import Generation, generate
from draftwire.verifier.parallelism import Parallelism
from draftwire.verifier.policy import policy_like
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import WireVersion

if TYPE_CHECKING:
    from draftwire.engines.parallel.columns import ModelColumns


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What ``draftwire generate`` was asked to do, checked."""

    target: Path | None
    drafter: Address | None
    prompt: Prompt
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    seed: int | None
    max_tokens: int
    stop: tuple[str, ...]
    depth: DepthChoice
    layout: LayoutChoice
    draft_temperature: float
    deadline_ms: float | None
    wire: WireVersion
    draft_identity: bytes
    audit: bool
    device: str
    kernels: str
    threads: int
    as_json: bool
    security: Security | None
    breaker: bool
    states: StateOptions
    telemetry: TelemetryOptions
    ranks: RankOptions | None
    rank_links: tuple[Address, ...]
    ownership: Parallelism


def sampling_of(options: GenerateOptions) -> Sampling:
    """Return the request's sampling parameters."""
    return Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        max_tokens=options.max_tokens,
        stop=options.stop,
    )


def policy_of(options: GenerateOptions, vocab_size: int) -> ProposalPolicy:
    """Return how proposals are made: the request's own restrictions hold for q as well."""
    return policy_like(
        options.layout.layout,
        options.depth.most,
        min(options.layout.support, vocab_size),  # of a small vocabulary, every id
        vocab_size,
        temperature=options.draft_temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
    )


def generate_and_print(options: GenerateOptions) -> None:
    """Generate, write the text to standard output and what it took to standard error."""
    kernels_for(options.kernels, options.device)  # missing ones are said before a model loads
    if options.depth.auto and (options.ranks is not None or options.wire is WireVersion.V1):
        raise ConfigurationError(
            "--depth auto is for wire v2 and a target without ranks: give --depth a number"
        )
    if options.ranks is None:
        target = Target(options.target, device=options.device, threads=options.threads)
        _generate(options, target, partial(generate, kernels=options.kernels))
        return
    with ranked_target(options) as led:
        if led is not None:
            from draftwire.engines.parallel.target import RankedGeneration

            _generate(options, led[0], RankedGeneration, led[1])


def _generate(
    options: GenerateOptions, target: Target, begin: Callable[..., Any], links: Any = None
) -> None:
    """Generate with a target; links: its ranks' own, in the place of a drafter."""
    prompt = target.encode_prompt(options.prompt)
    vocab_size = target.engine.vocab_size
    policy = policy_of(options, vocab_size)
    if options.layout.support > vocab_size:
        said = f"--layout {options.layout} is more than the vocabulary's {vocab_size} ids"
        click.echo(f"draftwire: {said}: all of them are sent", err=True)
    notes = Notes()
    with ExitStack() as stack:
        telemetry = options.telemetry
        stack.enter_context(logging_to(telemetry.log_level, telemetry.log_format))
        drafter = links
        if links is not None:
            stack.enter_context(serving_metrics(telemetry, links.client))
        elif options.drafter is not None:
            drafter = stack.enter_context(
                remote_drafter(
                    options.drafter,
                    target,
                    policy,
                    notes,
                    version=options.wire,
                    draft_identity=options.draft_identity,
                    deadline=None if options.deadline_ms is None else options.deadline_ms / 1e3,
                    audit=options.audit,
                    security=options.security,
                    breaker=Breaker() if options.breaker else None,
                    early_stop=options.depth.auto,
                    **options.states.config(options.device),
                )
            )
            stack.enter_context(serving_metrics(telemetry, drafter))
        running = stack.enter_context(
            begin(
                target.engine,
                drafter,
                prompt,
                sampling_of(options),
                policy,
                decode=target.decode,
            )
        )
        show = _print_json if options.as_json else _stream
        show(running, options, notes)


def _stream(running: Generation[Any], options: GenerateOptions, notes: Notes) -> None:
    def write(piece: str) -> None:
        click.echo(piece, nl=False)
        sys.stdout.flush()

    stream = TextStream(write, colour=wants_colour(sys.stdout))
    try:
        for emission in running:
            if emission.index == 0:
                notes.print_new(running.report.notes)
            stream.add(emission)
    finally:  # a target that fails keeps what it has written
        stream.finish(running.text)
        write("\n")
    notes.print_new(running.report.notes)
    for text in report_lines(running.report):
        click.echo(text, err=True)
    rate = f"{running.report.tokens_per_second:.1f}"
    click.echo(line("tokens/s", rate), err=True)


def _print_json(running: Generation[Any], options: GenerateOptions, notes: Notes) -> None:
    try:
        with Counting("tokens", options.max_tokens) as counting:
            for _ in running:
                counting.advance()
    except Exception as error:
        running.close()
        click.echo(json.dumps(_as_dict(running, options, failure(error)), ensure_ascii=False))
        raise
    notes.print_new(running.report.notes)
    click.echo(json.dumps(_as_dict(running, options), ensure_ascii=False))


def _as_dict(
    running: Generation[Any], options: GenerateOptions, error: str | None = None
) -> dict[str, Any]:
    """Return the text and the report; error: what has ended the text early."""
    asked = ",".join(map(str, options.rank_links)) or options.drafter
    report = running.report
    out = {
        "text": running.text,
        "tokens": list(running.tokens),
        "drafter": None if asked is None else str(asked),
        "drafted": report.drafted_rounds > 0,
        "report": report.as_dict(),
    }
    return out if error is None else {**out, "error": error}


class RankedTarget(Target):
    """The target that rank 0 leads, with the tokenizer."""

    def __init__(self, engine: Any, columns: ModelColumns, folder: Path) -> None:
        """Take what this rank has of it."""
        self.engine = engine
        self.folder = folder
        self.tokenizer = columns.tokenizer


@contextmanager
def ranked_target(options: GenerateOptions) -> Iterator[tuple[Target, Any] | None]:
    """Yield the target over ranks and its links (None: the leader has the connection).

    Yields None on a rank that follows, once the leader has ended. Raises ConfigurationError.
    """
    assert options.ranks is not None
    with ExitStack() as stack:
        group, columns = stack.enter_context(
            joined_ranks(options.ranks, options.threads, options.target, "target")
        )
        from draftwire.engines.hf import embedded_folder
        from draftwire.engines.parallel.links import LinkFollower, RankLinks
        from draftwire.engines.parallel.target import RankedTargetEngine, follow_verifying
        from draftwire.kernels.shards.shard import even_shards
        from draftwire.verifier.rank_client import RankClient

        client = None
        if options.rank_links:
            if options.deadline_ms is None:
                raise ConfigurationError("links from rank to rank need a deadline")
            shard = even_shards(columns.vocab_size, group.size)[group.rank]
            client = stack.enter_context(
                RankClient(
                    options.rank_links[group.rank],
                    columns,
                    None if options.ownership is Parallelism.REQUESTS else shard,
                    deadline=options.deadline_ms / 1e3,
                    audit=options.audit,
                    max_depth=options.depth.most,
                    max_support=max(1, options.layout.support),
                    draft_identity=options.draft_identity,
                    security=options.security,
                )
            )
        if group.rank:
            links = None if client is None else LinkFollower(group, client)
            follow_verifying(group, columns, links=links, kernels=options.kernels)
            yield None
            return
        engine = RankedTargetEngine(group, columns, options.ownership, options.kernels)
        folder = options.target or embedded_folder("target")
        try:
            breaker = Breaker() if options.breaker else None
            led = (
                None
                if client is None
                else RankLinks(group, client, breaker=breaker, audit=options.audit)
            )
            yield RankedTarget(engine, columns, folder), led
        finally:
            with suppress(TransportError):
                engine.stop()
