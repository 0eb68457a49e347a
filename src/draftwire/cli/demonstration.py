"""What ``draftwire demo`` does once its options are known to make sense."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwire.cli.comparison import REMOTE, Trio, compare, policy_for, rates_of, trio
from draftwire.cli.options import DepthChoice, LayoutChoice
from draftwire.cli.output import Notes, TextStream, legend, line, rates, report_lines, wants_colour
from draftwire.cli.progress import Counting
from draftwire.cli.prompts import Prompt
from draftwire.verifier.generate import generate
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy

if TYPE_CHECKING:
    from draftwire.verifier.report import Report


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What ``draftwire demo`` was asked to do, checked."""

    target: Path | None
    drafter: Path | None
    shared: bool
    prompt: Prompt
    temperature: float
    seed: int
    max_tokens: int
    depth: DepthChoice
    layout: LayoutChoice
    repeats: int
    threads: int
    kernels: str
    as_json: bool


def show(options: DemoOptions) -> None:
    """Run the demo: stream one text, then measure, then report."""
    policy = policy_for(options.layout, options.depth.most, options.temperature)
    with trio(
        options.target,
        options.drafter,
        policy,
        threads=options.threads,
        kernels=options.kernels,
        shared=options.shared,
        early_stop=options.depth.auto,
    ) as pair:
        report = _stream(pair, options, policy)
        reports = _measure(pair, options, policy)
    if options.as_json:
        click.echo(json.dumps(_as_dict(report, reports, options)))
        return
    click.echo()
    for text in report_lines(report):
        click.echo(text)
    for text in rates(*rates_of(reports).values()):
        click.echo(text)
    turns = f"{options.repeats} turn" + "s" * (options.repeats > 1)
    what = f"medians of {turns}, ratios are medians within turns"
    click.echo(line("", f"{what}; CPU threads a process: {options.threads}"))


def _sampling(options: DemoOptions) -> Sampling:
    return Sampling(
        temperature=options.temperature, seed=options.seed, max_tokens=options.max_tokens
    )


def _stream(pair: Trio, options: DemoOptions, policy: ProposalPolicy) -> Report:
    prompt = pair.target.encode_prompt(options.prompt)
    colour = wants_colour(sys.stdout)

    def write(piece: str) -> None:
        if not options.as_json:
            click.echo(piece, nl=False, color=colour)
            sys.stdout.flush()

    write(f"target here, drafter at {pair.address} in a process of its own\n")
    write(f"depth {options.depth}, q as {options.layout}, temperature {options.temperature:g}\n")
    between = "\n\n" if options.prompt.messages else ""
    write(f"{legend(colour)}\n\n{options.prompt.text}{between}")
    stream = TextStream(write, colour=colour, marks=True)
    with generate(
        pair.target.engine,
        pair.drafters[REMOTE],
        prompt,
        _sampling(options),
        policy,
        decode=pair.target.decode,
        kernels=options.kernels,
    ) as running:
        for emission in running:
            stream.add(emission)
    stream.finish(running.text)
    write("\n")
    Notes().print_new(running.report.notes)
    return running.report


def _measure(pair: Trio, options: DemoOptions, policy: ProposalPolicy) -> dict[str, list[Report]]:
    prompt = pair.target.encode_prompt(options.prompt)
    turns = len(pair.drafters) * (options.repeats + 1)
    with Counting("measuring", turns, "texts") as counting:
        return compare(pair, prompt, _sampling(options), policy, options.repeats, counting.advance)


def _as_dict(
    report: Report, reports: dict[str, list[Report]], options: DemoOptions
) -> dict[str, Any]:
    return {
        "depth": options.depth.most,
        "early_stop": options.depth.auto,
        "layout": str(options.layout),
        "temperature": options.temperature,
        "report": report.as_dict(),
        "tokens_per_second": rates_of(reports),
    }
