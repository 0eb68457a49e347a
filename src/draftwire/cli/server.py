"""What ``draftwire serve`` does once its options are known to make sense."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from draftwire.cli.models import prepare_torch, require_folder
from draftwire.cli.process import READY
from draftwire.cli.progress import working
from draftwire.cli.ranks import RankOptions, joined_ranks
from draftwire.cli.telemetry import TelemetryOptions, serving_metrics
from draftwire.drafter.limits import PeerLimits
from draftwire.drafter.program import DrafterConfig
from draftwire.engines.registry import ServedVocabulary, load_drafter, read_tokenizer
from draftwire.errors import TransportError
from draftwire.kernels.registry import kernels_for
from draftwire.telemetry.log_handler import logging_to
from draftwire.transport.security import Security
from draftwire.transport.tcp import Address, listen
from draftwire.wire.registry import LayoutSet, WireVersion


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What ``draftwire serve`` was asked to do, checked."""

    model: Path | None
    host: str
    port: int
    max_connections: int
    max_sessions: int
    max_batch: int
    max_reply_mib: float | None
    kept_prefix_mib: float
    max_context: int | None
    max_depth: int
    max_support: int
    layouts: LayoutSet
    wire: WireVersion
    target_identity: bytes
    target_tokenizer: Path | None
    target_weights: Path | None
    vocab_size: int | None
    device: str
    kernels: str
    threads: int
    until_stdin_closes: bool
    security: Security | None
    telemetry: TelemetryOptions
    drain_seconds: float
    limits: PeerLimits
    ranks: RankOptions | None
    rank_links: bool


def serve_until_told(options: ServeOptions) -> None:
    """Load the model, listen, print the address, serve until a signal or the end of stdin."""
    require_folder(options.model)
    leads = options.ranks is None or options.ranks.leads
    if options.until_stdin_closes and leads:
        threading.Thread(target=_follow_stdin, daemon=True).start()
    if options.ranks is not None:
        with logging_to(options.telemetry.log_level, options.telemetry.log_format):
            _serve_ranks(options, _config(options))
        return
    # A port in use, or open without authentication, is refused before a large model is loaded.
    listen(options.host, options.port, guarded=options.security is not None).close()
    telemetry = options.telemetry
    quiet = telemetry.log_format == "json"  # every line is one event then
    with nullcontext() if quiet else working("loading the drafter"):
        prepare_torch(options.threads)
        kernels_for(options.kernels, options.device)  # missing ones are said before a model loads
        from draftwire.drafter.server import serve

        engine = load_drafter(
            options.model,
            device=options.device,
            serve_as=_vocabulary(options),
            target=options.target_weights,
        )
    with logging_to(telemetry.log_level, telemetry.log_format):
        serve(
            engine,
            _config(options),
            host=options.host,
            port=options.port,
            security=options.security,
            ready=_say_ready,
            drain_seconds=options.drain_seconds,
            watch=lambda server: serving_metrics(
                telemetry, server.program, lambda: server.draining
            ),
        )


def _serve_ranks(options: ServeOptions, config: DrafterConfig) -> None:
    """Serve over ranks: one answers for all, or each its own shard on its own port."""
    assert options.ranks is not None
    with joined_ranks(options.ranks, options.threads, options.model, "drafter") as (group, columns):
        from draftwire.drafter.program import DrafterProgram
        from draftwire.drafter.server import DrafterServer, serve
        from draftwire.engines.parallel.drafter import (
            RankedContext,
            RankedDraftEngine,
            follow_drafting,
            propose,
            propose_shards,
        )
        from draftwire.engines.parallel.mailbox import ShardMailbox
        from draftwire.engines.parallel.reply import (
            FollowerEngine,
            FollowerProgram,
            follower_thread,
        )

        def say_ready(address: Address) -> None:
            which = f"rank {group.rank} " if options.rank_links else ""
            click.echo(f"{which}{READY}{address}")
            sys.stdout.flush()

        run = partial(
            serve,
            config=config,
            host=options.host,
            port=options.port + group.rank if options.port else 0,
            security=options.security,
            ready=say_ready,
        )
        if group.rank and not options.rank_links:
            follow_drafting(group, columns)
            return
        if group.rank:
            mailbox = ShardMailbox()
            run(
                FollowerEngine(columns),
                make=partial(FollowerProgram, mailbox=mailbox),
                watch=lambda server: follower_thread(group, columns, server, mailbox),
            )
            return
        engine = RankedDraftEngine(group, columns)
        telemetry = options.telemetry

        def watch(server: DrafterServer[RankedContext]) -> Any:
            return serving_metrics(telemetry, server.program, lambda: server.draining)

        proposer = propose_shards if options.rank_links else propose
        try:
            run(
                engine,
                drain_seconds=options.drain_seconds,
                watch=watch,
                make=partial(DrafterProgram, proposer=proposer),
            )
        finally:
            with suppress(TransportError):  # a rank that is gone needs no farewell
                engine.stop()


def _config(options: ServeOptions) -> DrafterConfig:
    shards = options.ranks.size if options.ranks is not None and options.rank_links else 1
    return DrafterConfig(
        version=options.wire,
        layouts=options.layouts,
        max_connections=options.max_connections,
        max_sessions=options.max_sessions,
        max_slots=options.max_sessions,
        max_batch=options.max_batch,
        max_reply_memory=_reply_memory(options.max_reply_mib),
        kept_prefix_memory=int(options.kept_prefix_mib * (1 << 20)),
        max_context=options.max_context or 0,
        max_depth=options.max_depth,
        max_support=options.max_support,
        peer=options.limits,
        shard_count=shards,
        kernels=options.kernels,
        target_identity=options.target_identity,
    )


def _reply_memory(mib: float | None) -> int:
    """Return the bytes; 0 = half of the memory."""
    return 0 if mib is None else max(1, int(mib * (1 << 20)))


def _vocabulary(options: ServeOptions) -> ServedVocabulary | None:
    """Return what is served instead of the drafter's own vocabulary, if anything."""
    if options.target_tokenizer is not None:
        tokenizer, size = read_tokenizer(options.target_tokenizer, role="target")
        return ServedVocabulary(tokenizer, options.vocab_size or size)
    return ServedVocabulary(size=options.vocab_size) if options.vocab_size else None


def _say_ready(address: Address) -> None:
    click.echo(f"{READY}{address}")
    sys.stdout.flush()


def _follow_stdin() -> None:
    """Wait for the end of standard input, then ask this process to end at once, as SIGINT does."""
    # Not sys.stdin: a thread inside its lock when the interpreter ends would abort the process.
    while os.read(0, 4096):
        continue
    os.kill(os.getpid(), signal.SIGINT)
