"""What ``draftwire serve`` does once its options are known to make sense."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import nullcontext

import click

from draftwire.cli.models import prepare_torch, require_folder
from draftwire.cli.operations import serving_metrics
from draftwire.cli.process import READY
from draftwire.cli.progress import working
from draftwire.cli.ranked import serve_ranks
from draftwire.cli.serve import ServeOptions
from draftwire.drafter.program import DrafterConfig
from draftwire.telemetry.log_handler import logging_to
from draftwire.transport.tcp import Address, listen


def serve_until_told(options: ServeOptions) -> None:
    """Load the model, listen, print the address, serve until a signal or the end of stdin."""
    require_folder(options.model)
    leads = options.ranks is None or options.ranks.leads
    if options.until_stdin_closes and leads:
        threading.Thread(target=_follow_stdin, daemon=True).start()
    if options.ranks is not None:
        with logging_to(options.watching.log_level, options.watching.log_format):
            serve_ranks(options, _config(options))
        return
    # What is in use, or open to strangers, is said before a large model is loaded for it.
    listen(options.host, options.port, guarded=options.security is not None).close()
    watching = options.watching
    quiet = watching.log_format == "json"  # every line is one event then
    with nullcontext() if quiet else working("loading the drafter"):
        prepare_torch(options.threads)
        from draftwire.drafter.server import serve
        from draftwire.engines.hf import HfDraftEngine, embedded_folder

        folder = options.model or embedded_folder("drafter")
        engine = HfDraftEngine.from_folder(folder, device=options.device)
    with logging_to(watching.log_level, watching.log_format):
        serve(
            engine,
            _config(options),
            host=options.host,
            port=options.port,
            security=options.security,
            ready=_say_ready,
            drain_seconds=options.drain_seconds,
            watch=lambda server: serving_metrics(watching, server.program, lambda: server.draining),
        )


def _config(options: ServeOptions) -> DrafterConfig:
    shards = options.ranks.size if options.ranks is not None and options.rank_links else 1
    return DrafterConfig(
        version=options.wire,
        layouts=options.layouts,
        max_connections=options.max_connections,
        max_sessions=options.max_sessions,
        max_slots=options.max_sessions,
        max_batch=options.max_batch,
        max_reply_memory=int(options.max_reply_mib * (1 << 20)),
        max_depth=options.max_depth,
        max_support=options.max_support,
        peer=options.limits,
        shard_count=shards,
    )


def _say_ready(address: Address) -> None:
    click.echo(f"{READY}{address}")
    sys.stdout.flush()


def _follow_stdin() -> None:
    """Wait for the end of standard input, then ask this process to end at once, as SIGINT does."""
    # Not sys.stdin: a thread inside its lock when the interpreter ends would abort the process.
    while os.read(0, 4096):
        continue
    os.kill(os.getpid(), signal.SIGINT)
