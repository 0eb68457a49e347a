"""What ``draftwire generate`` does once its options are known to make sense."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import click

from draftwire.cli.drafters import remote_drafter
from draftwire.cli.generate import GenerateOptions
from draftwire.cli.models import Target
from draftwire.cli.notes import Notes
from draftwire.cli.operations import serving_metrics
from draftwire.cli.progress import Counting
from draftwire.cli.ranked import ranked_target
from draftwire.cli.screen import TextStream, wants_colour
from draftwire.cli.summary import line, report_lines
from draftwire.telemetry.log_handler import logging_to
from draftwire.verifier.breaker import Breaker
from draftwire.verifier.generate import Generation, generate
from draftwire.verifier.policy import policy_like
from draftwire.verifier.sampling import Sampling
from draftwire.verifier.stop import cut
from draftwire.wire.messages import ProposalPolicy


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
        options.depth,
        min(options.layout.support, vocab_size),  # of a small vocabulary, every id
        vocab_size,
        temperature=options.draft_temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
    )


def generate_and_print(options: GenerateOptions) -> None:
    """Generate, write the text to standard output and what it took to standard error."""
    if options.ranks is None:
        target = Target(options.target, device=options.device, threads=options.threads)
        _generate(options, target, generate)
        return
    with ranked_target(options) as led:
        if led is not None:
            from draftwire.engines.parallel.target import RankedGeneration

            _generate(options, led[0], RankedGeneration, led[1])


def _generate(
    options: GenerateOptions, target: Target, begin: Callable[..., Any], links: Any = None
) -> None:
    """Generate with a target; links: its ranks' own, in the place of a drafter."""
    prompt = target.encode(options.prompt)
    policy = policy_of(options, target.engine.vocab_size)
    notes = Notes()
    with ExitStack() as stack:
        watching = options.watching
        stack.enter_context(logging_to(watching.log_level, watching.log_format))
        drafter = links
        if links is not None:
            stack.enter_context(serving_metrics(watching, links.client))
        elif options.drafter is not None:
            drafter = stack.enter_context(
                remote_drafter(
                    options.drafter,
                    target,
                    policy,
                    notes,
                    version=options.wire,
                    deadline=None if options.deadline_ms is None else options.deadline_ms / 1e3,
                    audit=options.audit,
                    security=options.security,
                    breaker=Breaker() if options.breaker else None,
                )
            )
            stack.enter_context(serving_metrics(watching, drafter))
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
        text = _whole(running, target, options, notes) if options.as_json else None
        if text is None:
            _stream(running, target, options, notes)
        else:
            _print_json(running, text, options)


def _stream(
    running: Generation[Any], target: Target, options: GenerateOptions, notes: Notes
) -> None:
    def write(piece: str) -> None:
        click.echo(piece, nl=False)
        sys.stdout.flush()

    stream = TextStream(write, target.decode, options.stop, colour=wants_colour(sys.stdout))
    for emission in running:
        if emission.index == 0:
            notes.tell(running.report.notes)
        stream.add(emission)
    stream.finish(cut(target.decode(running.tokens), options.stop))
    write("\n")
    notes.tell(running.report.notes)
    for text in report_lines(running.report):
        click.echo(text, err=True)
    rate = f"{running.report.tokens_per_second:.1f}"
    click.echo(line("tokens/s", rate), err=True)


def _whole(running: Generation[Any], target: Target, options: GenerateOptions, notes: Notes) -> str:
    with Counting("tokens", options.max_tokens) as counting:
        for _ in running:
            counting.advance()
    notes.tell(running.report.notes)
    return cut(target.decode(running.tokens), options.stop)


def _print_json(running: Generation[Any], text: str, options: GenerateOptions) -> None:
    asked = ",".join(map(str, options.rank_links)) or options.drafter
    report = running.report
    out = {
        "text": text,
        "tokens": list(running.tokens),
        "drafter": None if asked is None else str(asked),
        "drafted": report.drafted_rounds > 0,
        "report": report.as_dict(),
    }
    click.echo(json.dumps(out, ensure_ascii=False))
